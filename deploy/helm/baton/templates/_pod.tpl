{{/*
The pod of a workload, and the keys that users shape it with: those of `pods`, for pods that are no workers those of
`scheduling`, and over them those of the service or pool. A key that is null leaves its place to the platform.
*/}}

{{/* The keys of one workload's pods, merged: (dict "root" $ "spec" w). */}}
{{- define "baton.pod.keys" -}}
{{- $values := .root.Values }}
{{- $keys := deepCopy $values.pods }}
{{- $own := .spec.own }}
{{- if not $own }}
{{- $keys = mergeOverwrite $keys (deepCopy $values.scheduling) }}
{{- $own = ternary $values.tracing.jaeger (get $values .spec.component) (eq .spec.component "jaeger") }}
{{- end }}
{{- $keys = mergeOverwrite $keys (pick (deepCopy $own) "annotations" "labels" "env" "envFrom" "serviceAccountName" "podSecurityContext" "securityContext" "nodeSelector" "tolerations" "affinity" "spreadOver" "topologySpreadConstraints" "runtimeClassName" "schedulerName" "priorityClassName" "resourceClaims" "extraVolumes" "extraVolumeMounts") }}
{{- range $name, $_ := $keys.env }}
{{- if hasPrefix "BATON_" $name }}
{{- fail (printf "%s.env.%s: Baton's own variables are set by the chart and by `settings`" ($.spec.container | default $.spec.component) $name) }}
{{- end }}
{{- end }}
{{- toYaml $keys }}
{{- end }}

{{- define "baton.pod" -}}
{{- $root := .root }}
{{- $w := .spec }}
{{- $own := .own }}
serviceAccountName: {{ $own.serviceAccountName | default (include "baton.account" (dict "root" $root "rights" $w.account)) }}
automountServiceAccountToken: {{ not (empty $w.account) }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "baton.grace" . | trim }}
{{- include "baton.pod.pulls" $root }}
{{- include "baton.pod.context" $own }}
{{- include "baton.pod.place" $own }}
{{- if $own.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml $own.topologySpreadConstraints | nindent 2 }}
{{- else if $own.spreadOver }}
topologySpreadConstraints:
  - topologyKey: {{ $own.spreadOver }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "baton.selector" (dict "root" $root "component" $w.component) | nindent 8 }}
        {{- with $w.labels }}{{ toYaml . | nindent 8 }}{{ end }}
{{- end }}
{{- with $own.resourceClaims }}
resourceClaims: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $w.init }}
initContainers:
  {{- range . }}
  - name: {{ .name }}
    image: {{ .image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: {{- toYaml .command | nindent 6 }}
    securityContext: {{- include "baton.container.security" $root | nindent 6 }}
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}
    volumeMounts: {{- toYaml .mounts | nindent 6 }}
  {{- end }}
{{- end }}
containers:
  - name: {{ $w.container | default $w.component }}
    image: {{ $w.image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- with $w.command }}
    command: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $w.args }}
    args: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- include "baton.pod.env" . | nindent 4 }}
    {{- with $own.envFrom }}
    envFrom: {{- toYaml . | nindent 6 }}
    {{- end }}
    ports:
      {{- range $name, $port := $w.ports }}
      - {name: {{ $name }}, containerPort: {{ $port }}}
      {{- end }}
    {{- include "baton.probes" $w | nindent 4 }}
    lifecycle:
      preStop: {sleep: {seconds: {{ $w.preStop | default $root.Values.preStopSeconds }}}}
    resources:
      {{- toYaml $w.resources | nindent 6 }}
      {{- with $own.resourceClaims }}
      claims:
        {{- range . }}
        - {name: {{ .name }}}
        {{- end }}
      {{- end }}
    {{- with include "baton.context" $own.securityContext }}
    securityContext: {{- . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- range concat ($w.volumes | default list) ($w.claims | default list) }}
      - name: {{ .name }}
        mountPath: {{ .path }}
        {{- if .readOnly }}
        readOnly: true
        {{- end }}
      {{- end }}
      {{- with $own.extraVolumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
volumes:
  - {name: tmp, emptyDir: {sizeLimit: 1Gi}}
  {{- range $w.volumes }}
  - name: {{ .name }}
    {{- toYaml .source | nindent 4 }}
  {{- end }}
  {{- with $own.extraVolumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Variables: fields of the pod, which others may name, the chart's, and the user's over them (a value, or the body of valueFrom). */}}
{{- define "baton.pod.env" -}}
{{- $env := deepCopy (.spec.env | default dict) }}
{{- $fields := deepCopy (.spec.fieldEnv | default dict) }}
{{- if hasKey $env "OTEL_EXPORTER_OTLP_ENDPOINT" }}
{{- $who := dict "K8S_NAMESPACE" "metadata.namespace" "K8S_POD_NAME" "metadata.name" "K8S_POD_UID" "metadata.uid" "K8S_NODE_NAME" "spec.nodeName" }}
{{- $fields = merge $fields $who }}
{{- $_ := set $env "OTEL_RESOURCE_ATTRIBUTES" (include "baton.otel.resource" .) }}
{{- end }}
{{- $env = mergeOverwrite $env (.own.env | default dict) }}
{{- if or $env $fields -}}
env:
  {{- range $name, $path := $fields }}
  - {name: {{ $name }}, valueFrom: {fieldRef: {fieldPath: {{ $path | quote }}}}}
  {{- end }}
  {{- range $name, $value := $env }}
  {{- if kindIs "map" $value }}
  - {name: {{ $name }}, valueFrom: {{ toJson $value }}}
  {{- else }}
  - {name: {{ $name }}, value: {{ include "baton.text" $value | quote }}}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Who a pod is, in the words of OpenTelemetry's resources; the service's own name is known in it. */}}
{{- define "baton.otel.resource" -}}
service.namespace={{ include "baton.fullname" .root }},service.instance.id=$(K8S_POD_NAME),k8s.namespace.name=$(K8S_NAMESPACE),k8s.pod.name=$(K8S_POD_NAME),k8s.pod.uid=$(K8S_POD_UID),k8s.node.name=$(K8S_NODE_NAME),k8s.container.name={{ .spec.container | default .spec.component }}
{{- end }}

{{/* Nodes for a pod, from its keys. */}}
{{- define "baton.pod.place" }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "runtimeClassName" "schedulerName" "priorityClassName" }}
{{- with get $ $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.pod.pulls" }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "baton.pod.context" }}
{{- with include "baton.context" .podSecurityContext }}
securityContext: {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A security context without what is null in it; nothing if none of it is left. */}}
{{- define "baton.context" -}}
{{- $given := dict }}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $given $name $value }}{{ end }}
{{- end }}
{{- with $given }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The same for pods that are no workloads: by default what the "restricted" Pod Security Standard requires. */}}
{{- define "baton.pod.security" }}
{{- include "baton.pod.pulls" . }}
{{- include "baton.pod.context" .Values.pods }}
{{- end }}

{{- define "baton.container.security" -}}
{{- include "baton.context" .Values.pods.securityContext | default "{}" }}
{{- end }}

{{/* Labels and annotations of such a pod, beside the chart's own: (dict "labels" l "annotations" a "keys" k). */}}
{{- define "baton.pod.metadata" -}}
labels: {{- toYaml (merge (deepCopy .labels) (.keys.labels | default dict)) | nindent 2 }}
{{- with merge (deepCopy .annotations) (.keys.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The ServiceAccount of a pod with these rights: (dict "root" $ "rights" "watcher"); without rights, one that may do nothing. */}}
{{- define "baton.account" -}}
{{ include "baton.fullname" .root }}{{ with .rights }}-{{ . }}{{ end }}
{{- end }}
