{{/*
All connections between components: the network policies allow these and no others. `port` is the
container's; without it, all ports. `from` and `to` are components; `dns`, `api`, `hub` and `otlp` are outside.
*/}}
{{- define "baton.edges" -}}
- {from: envoy, to: gateway, port: 8080}
- {from: envoy, to: edge, port: 18000}
- {from: edge, to: gateway, port: 8080}
- {from: edge, to: api}
- {from: gateway, to: quota, port: 7000}
- {from: gateway, to: tokenizer, port: 7000}
- {from: gateway, to: router, port: 7000}
- {from: gateway, to: decode, port: 7000}
# Prefill workers stand in for a decode pool that is gone.
- {from: gateway, to: prefill, port: 7000}
- {from: tokenizer, to: router, port: 7000}
- {from: tokenizer, to: decode, port: 7000}
- {from: tokenizer, to: prefill, port: 7000}
- {from: router, to: decode, port: 7000}
- {from: router, to: prefill, port: 7000}
- {from: router, to: router, port: 7000}
- {from: router, to: api}
- {from: gateway, to: api}
- {from: decode, to: prefill, port: 7000}
{{- if include "baton.uses-nixl" . }}
# NIXL listens where it likes.
- {from: decode, to: prefill}
- {from: prefill, to: decode}
{{- end }}
- {from: quota, to: redis, port: 6379}
- {from: gateway, to: redis, port: 6379}
{{- if .Values.quota.adminApi.existingSecret }}
- {from: quota, to: api}
{{- end }}
- {from: download, to: hub}
- {from: test, to: {{ include "baton.way-in" . }}, port: 8080}
{{- if not .Values.loadtest.url }}
- {from: loadtest, to: {{ include "baton.way-in" . }}, port: 8080}
{{- end }}
{{- range tuple "envoy" "edge" "gateway" "quota" "tokenizer" "router" "prefill" "decode" }}
{{- if $.Values.page.enabled }}
- {from: {{ . }}, to: page, port: 4317}
- {from: page, to: {{ . }}, port: 9090}
{{- else }}
- {from: {{ . }}, to: otlp}
{{- end }}
{{- end }}
- {from: page, to: api}
- {from: page, to: otlp}
{{- if .Values.quota.adminApi.existingSecret }}
- {from: page, to: quota, port: 8081}
{{- end }}
{{- end }}

{{- define "baton.uses-nixl" -}}
{{- range $model := include "baton.models" . | fromYamlArray }}
{{- range $role := list "prefill" "decode" }}
{{- $pool := include "baton.pool" (dict "root" $ "model" $model "role" $role) | fromYaml }}
{{- if contains "nixl" ($pool.settings.transports | default "") }}yes{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The component that clients reach. */}}
{{- define "baton.way-in" -}}
{{ ternary "envoy" "gateway" .Values.envoy.enabled }}
{{- end }}
