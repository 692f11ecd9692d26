{{/*
The groups of files/alerts.yaml for this release: every selector asks for its own namespace, for another one may have
other objectives, and figures, severities and the runbook's address are those of the values.
*/}}
{{- define "baton.rules" -}}
{{- $monitoring := .Values.monitoring }}
{{- $objectives := $monitoring.objectives }}
{{- $seconds := include "baton.le" $objectives.firstToken.seconds }}
{{- $text := .Files.Get "files/alerts.yaml" }}
{{- $text = regexReplaceAll "\\b(up|baton[_:][a-z0-9_:]+|vllm:[a-z0-9_]+)\\{" $text (printf "${1}{%s," (include "baton.rules.matchers" .)) }}
{{- $text = $text | replace "0.999 of" (printf "%v of" $objectives.availability) | replace "(1 - 0.999)" (printf "(1 - %v)" $objectives.availability) }}
{{- $text = $text | replace "0.95 of" (printf "%v of" $objectives.firstToken.share) | replace "(1 - 0.95)" (printf "(1 - %v)" $objectives.firstToken.share) }}
{{- $text = $text | replace "le=\"5.0\"" (printf "le=%q" $seconds) | replace "> 5.0" (printf "> %s" $seconds) | replace "5.0 s" (printf "%s s" $seconds) }}
{{- $groups := (include "baton.runbooks" (dict "root" . "text" $text) | fromYaml).groups }}
{{- range $groups }}
{{- range .rules }}
{{- if .alert }}
{{- $severity := dict "severity" (get $monitoring.rules.severities .labels.severity) }}
{{- $_ := set . "labels" (merge $severity .labels $monitoring.rules.alertLabels) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $groups }}
{{- end }}

{{/* What this release's series have: the operator writes `namespace`, the PodMonitor `release`. */}}
{{- define "baton.rules.matchers" -}}
{{- if .Values.monitoring.rules.matchers }}{{ .Values.monitoring.rules.matchers }}
{{- else -}}
namespace={{ .Release.Namespace | quote }}{{ if .Values.monitoring.podMonitor.enabled }},release={{ .Release.Name | quote }}{{ end }}
{{- end }}
{{- end }}

{{/* A bound of a histogram as its label has it: 5 is "5.0". */}}
{{- define "baton.le" -}}
{{ . }}{{ if eq (float64 .) (floor .) }}.0{{ end }}
{{- end }}

{{/* A text whose links to operations.md lead where the values say. */}}
{{- define "baton.runbooks" -}}
{{- .text | replace "https://github.com/baton-serving/baton/blob/main/docs/operations.md" (.root.Values.monitoring.runbooks | trimSuffix "#") }}
{{- end }}
