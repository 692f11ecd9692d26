{{/* Settings of the services: environment variables of docs/configuration.md, and mounted secrets. */}}

{{/* Variables of every service of Baton. */}}
{{- define "baton.env.all" -}}
BATON_LOG_LEVEL: {{ .Values.logLevel }}
{{- with include "baton.otlp" . }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ . }}
OTEL_TRACES_SAMPLER_ARG: {{ $.Values.tracing.sampleRatio | toString | quote }}
{{- end }}
{{- if not .Values.page.enabled }}
{{- include "baton.env.collector" . }}
{{- end }}
{{- if eq .Values.tls.mode "plaintext" }}
BATON_TLS_PLAINTEXT: "true"
{{- else }}
BATON_TLS_CERT_FILE: /etc/baton/tls/tls.crt
BATON_TLS_KEY_FILE: /etc/baton/tls/tls.key
BATON_TLS_CA_FILE: /etc/baton/tls/ca.crt
{{- if ne (include "baton.tls.name" (dict "root" $ "service" "")) "baton" }}
BATON_TLS_PER_SERVICE: "true"
{{- end }}
{{- end }}
{{- end }}

{{/* `settings` of the values as variables: (dict "prefix" "BATON_ROUTER_" "settings" map). */}}
{{- define "baton.env.settings" -}}
{{- range $name, $value := .settings }}
{{ $.prefix }}{{ upper $name }}: {{ include "baton.text" $value | quote }}
{{- end }}
{{- end }}

{{/* What the collector asks for: of every service, or of the page, which forwards for all. */}}
{{- define "baton.env.collector" -}}
{{- if .Values.tracing.caSecret }}
OTEL_EXPORTER_OTLP_CERTIFICATE: /etc/baton/otlp/ca.crt
{{- end }}
{{- if .Values.tracing.headersSecret }}
BATON_OTLP_HEADERS_FILE: /etc/baton/otlp-headers/headers
{{- end }}
{{- end }}

{{/* Where services send their spans. */}}
{{- define "baton.otlp" -}}
{{- if .Values.page.enabled }}http://{{ include "baton.fullname" . }}-page:4317
{{- else }}{{ include "baton.collector" . }}
{{- end }}
{{- end }}

{{/* Where spans end. */}}
{{- define "baton.collector" -}}
{{- if .Values.tracing.endpoint }}{{ .Values.tracing.endpoint }}
{{- else if .Values.tracing.jaeger.enabled }}http://{{ include "baton.fullname" . }}-jaeger:4317
{{- end }}
{{- end }}

{{- define "baton.secret.auth" -}}
{{ .Values.auth.existingSecret | default (printf "%s-auth" (include "baton.fullname" .)) }}
{{- end }}

{{/* The Secret with a service's certificate: (dict "root" $ "service" "gateway"). */}}
{{- define "baton.secret.tls" -}}
{{- $t := .root.Values.tls -}}
{{- $own := include "baton.fullname" .root -}}
{{- if eq $t.mode "generated" }}{{ $own }}-certificates
{{- else if eq $t.mode "certManager" }}{{ $own }}-tls-{{ .service }}
{{- else }}{{ $t.existingSecret }}{{ if $t.perService }}-{{ .service }}{{ end }}
{{- end }}
{{- end }}

{{/* The services that have a certificate: the names of baton/runtime/callers.py, and the bundled Redis. */}}
{{- define "baton.tls.services" -}}
gateway,quota,tokenizer,router,worker,edge,envoy,redis
{{- end }}

{{/* The DNS name that a service's certificate shows: (dict "root" $ "service" "redis"). */}}
{{- define "baton.tls.name" -}}
{{- $t := .root.Values.tls -}}
{{ ternary "baton" (printf "%s.baton" .service) (and (eq $t.mode "existingSecret") (not $t.perService)) }}
{{- end }}

{{- define "baton.secret.redis" -}}
{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "baton.fullname" .)) }}
{{- end }}

{{/* The volume with the passwords of Redis, and of Sentinels that ask for one. */}}
{{- define "baton.volumes.redis" -}}
{{- if or .Values.redis.enabled .Values.redis.existingSecret }}
- name: redis
  path: /etc/baton/redis
  readOnly: true
  source:
    secret:
      secretName: {{ include "baton.secret.redis" . }}
      defaultMode: 0440
      items:
        - {key: password, path: password}
        {{- with .Values.redis.sentinelPasswordKey }}
        - {key: {{ . }}, path: sentinel-password}
        {{- end }}
{{- end }}
{{- end }}

{{/* Where a pod's node stands (`places` of zone and region), unless the service's settings say it. Empty where the
cluster does not put the node's place on its pods (it does from 1.35 on). */}}
{{- define "baton.env.places" -}}
{{- range $place := .places }}
{{- if not (hasKey ($.settings | default dict) $place) }}
{{ $.prefix }}{{ upper $place }}: metadata.labels['topology.kubernetes.io/{{ $place }}']
{{- end }}
{{- end }}
{{- end }}

{{/* The volume with a service's certificate: (dict "root" $ "service" "gateway"). */}}
{{- define "baton.volumes.tls" -}}
{{- $tls := .root.Values.tls }}
{{- if ne $tls.mode "plaintext" }}
- name: tls
  path: /etc/baton/tls
  readOnly: true
  source:
    secret:
      secretName: {{ include "baton.secret.tls" . }}
      defaultMode: 0440
      {{- if eq $tls.mode "generated" }}
      items:
        - {key: ca.crt, path: ca.crt}
        - {key: {{ .service }}.crt, path: tls.crt}
        - {key: {{ .service }}.key, path: tls.key}
      {{- end }}
{{- end }}
{{- end }}

{{/* Volumes of every service: its certificate, and what the collector of spans asks for: (dict "root" $ "service" "gateway"). */}}
{{- define "baton.volumes.all" -}}
{{- include "baton.volumes.tls" . }}
{{- if not .root.Values.page.enabled }}
{{- include "baton.volumes.collector" .root }}
{{- end }}
{{- end }}

{{/* The collector's authorities and headers. */}}
{{- define "baton.volumes.collector" -}}
{{- with .Values.tracing.caSecret }}
- name: otlp-ca
  path: /etc/baton/otlp
  readOnly: true
  source: {secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- with .Values.tracing.headersSecret }}
- name: otlp-headers
  path: /etc/baton/otlp-headers
  readOnly: true
  source: {secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: headers, path: headers}]}}
{{- end }}
{{- end }}


{{/* Address of a service's gRPC port. */}}
{{- define "baton.grpc" -}}
{{ include "baton.fullname" .root }}-{{ .service }}:7000
{{- end }}

{{/* Every router by the Service of its own: gateways, tokenizers and the routers themselves know the same ones. */}}
{{- define "baton.routers" -}}
{{- $name := printf "%s-router" (include "baton.fullname" .) }}
{{- $all := list }}
{{- range $number := until (int .Values.router.replicas) }}
{{- $all = append $all (printf "%s-%d:7000" $name $number) }}
{{- end }}
{{- join "," $all }}
{{- end }}
