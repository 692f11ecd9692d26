{{/*
Scaling of a pool: prefill by the seconds of queued prompts that the router measures for each worker
of the pool, decode by the used and promised part of the KV blocks. `hpa` asks the external metrics
API (an adapter must serve baton_prefill_queue_seconds and baton_kv_percent, see docs); `keda` asks
Prometheus itself.
*/}}
{{- define "baton.scaler" -}}
{{- $auto := .pool.autoscaling }}
{{- $isPrefill := eq .role "prefill" }}
{{- $labels := include "baton.labels" (dict "root" .root "component" .role) }}
{{- $model := .model.name }}
{{- if eq $auto.mode "hpa" }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels: {{- $labels | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicas: {{ $auto.minReplicas }}
  maxReplicas: {{ $auto.maxReplicas }}
  metrics:
    - type: External
      external:
        metric:
          name: {{ ternary "baton_prefill_queue_seconds" "baton_kv_percent" $isPrefill }}
          # A selector takes no "/": the PodMonitor writes "_" instead.
          selector: {matchLabels: {model_label: {{ $model | replace "/" "_" | quote }}, namespace: {{ .root.Release.Namespace }}}}
        {{- if $isPrefill }}
        target: {type: Value, value: {{ $auto.queueSeconds | quote }}}
        {{- else }}
        target: {type: Value, value: {{ $auto.kvPercent | quote }}}
        {{- end }}
  behavior:
    # A worker that leaves drains, and a new one loads: slowly down, at once up.
    scaleDown: {stabilizationWindowSeconds: 600, policies: [{type: Pods, value: 1, periodSeconds: 120}]}
    scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 2, periodSeconds: 60}]}
{{- else if eq $auto.mode "keda" }}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ .name }}
  labels: {{- $labels | nindent 4 }}
spec:
  scaleTargetRef: {name: {{ .name }}}
  minReplicaCount: {{ $auto.minReplicas }}
  maxReplicaCount: {{ $auto.maxReplicas }}
  cooldownPeriod: 600
  triggers:
    - type: prometheus
      metricType: Value
      metadata:
        serverAddress: {{ .root.Values.monitoring.prometheusUrl }}
        query: {{ include "baton.scaler.query" . | quote }}
        {{- if .root.Values.monitoring.kedaAuthentication }}
        authModes: bearer
        {{- end }}
        threshold: {{ ternary $auto.queueSeconds $auto.kvPercent $isPrefill | toString | quote }}
      {{- with .root.Values.monitoring.kedaAuthentication }}
      authenticationRef: {name: {{ . }}}
      {{- end }}
{{- end }}
{{- end }}

{{/* The largest value of all routers, which measure the same; the mean of the pool's workers. */}}
{{- define "baton.scaler.query" -}}
{{- if eq .role "prefill" -}}
max(baton_router_queued_prefill_seconds{namespace="{{ .root.Release.Namespace }}",model_name="{{ .model.name }}",role="prefill"})
{{- else -}}
100 * sum(baton_kv_blocks_used{namespace="{{ .root.Release.Namespace }}",model_name="{{ .model.name }}",component="decode"} + baton_kv_blocks_promised{namespace="{{ .root.Release.Namespace }}",model_name="{{ .model.name }}",component="decode"}) / sum(baton_kv_blocks{namespace="{{ .root.Release.Namespace }}",model_name="{{ .model.name }}",component="decode"})
{{- end }}
{{- end }}
