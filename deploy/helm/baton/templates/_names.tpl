{{/* Names and labels. Every object is called <release>-<component>; the prefix of a release called baton is baton, not baton-baton. */}}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains "baton" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-baton" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select a component's pods: never changed, for Deployments cannot change them. */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* A model's name as part of names of objects: lower case letters, digits and dashes. */}}
{{- define "baton.model.id" -}}
{{- regexReplaceAll "[^a-z0-9]+" (.name | lower) "-" | trunc 30 | trimAll "-" }}
{{- end }}

{{/* The models that are served, each with its key as `name`: a model of `models` that is null or not enabled is not. */}}
{{- define "baton.models" -}}
{{- if kindIs "slice" .Values.models }}
{{- fail "models is a map by name now: models: {llama-8b: {source: ..., sizeGiB: 15}}, where it was models: [{name: llama-8b, source: ..., sizeGiB: 15}]" }}
{{- end }}
{{- $served := list }}
{{- range $name, $model := .Values.models }}
{{- if and $model (ne (toString $model.enabled) "false") }}
{{- $served = append $served (merge (dict "name" $name) (omit $model "enabled")) }}
{{- end }}
{{- end }}
{{- if not $served }}{{ fail "models: none is left; name one, or leave models.baton-demo as it is" }}{{ end }}
{{- toYaml $served }}
{{- end }}

{{/* The image of a service, of which `image` in its values, or `own` of a pool, may name another one. */}}
{{- define "baton.image" -}}
{{- $own := .own | default (get .root.Values .service | default dict).image | default dict -}}
{{ $own.repository | default (printf "%s/baton-%s" .root.Values.image.registry .service) }}
{{- with $own.digest }}@{{ . }}
{{- else }}:{{ $own.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* A value as text. Helm reads all numbers as floats, and writes large ones as 1.6777216e+07. */}}
{{- define "baton.text" -}}
{{- if not (kindIs "float64" .) }}{{ . }}
{{- else if eq . (floor .) }}{{ int64 . }}
{{- else }}{{ . }}
{{- end }}
{{- end }}

{{/* "250m", "4" or a number of CPUs, as whole cores. */}}
{{- define "baton.cores" -}}
{{- $text := toString . }}
{{- $cores := trimSuffix "m" $text | float64 }}
{{- if hasSuffix "m" $text }}{{ $cores = divf $cores 1000 }}{{ end }}
{{- ceil $cores | int64 }}
{{- end }}

{{/* "2Gi", "512Mi", "2GiB", "1G", "1500M" or a plain number, in bytes. */}}
{{- define "baton.bytes" -}}
{{- $text := toString . | trimSuffix "B" -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $factors := dict "" 1 "k" 1000 "K" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (hasKey $factors $unit) }}{{ fail (printf "%s is not a size: say 512Mi or 2Gi" .) }}{{ end -}}
{{ mulf $number (get $factors $unit) | int64 }}
{{- end }}
