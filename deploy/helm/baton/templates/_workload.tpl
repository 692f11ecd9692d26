{{/*
One workload: Deployment or StatefulSet, its Service, PodDisruptionBudget and grace period. Every
component of the chart is rendered by this template from a description:

  component     name in labels                    name        of the objects
  kind          Deployment (default), StatefulSet replicas
  image         of the only container             command, args
  env           name: value                       fieldEnv    name: field of the pod
  ports         name: number                      resources
  volumes       list of {name, path, readOnly, source}; source is the volume's body
  claims        list of {name, path, size, storageClassName}: one claim per pod (StatefulSet)
  init          list of init containers (name, image, command, env, mounts)
  probes        {startup, ready, live}: paths on port `port` (ready: on `readyPort`, by `readyScheme`);
                startupSeconds; tcp: true = connect only
  drainSeconds  what it may take after SIGTERM    preStop     seconds before SIGTERM
  service       none | balanced | headless. Who is asked for by name is not headless: until a pod is ready DNS would say that there is none, and keep that for 30 s
  own           keys of `pods` that it has itself; those of a service are in its values, under its name
  account       watcher, keys: with rights         labels, checksum, surge, serviceType, ...
*/}}
{{- define "baton.workload" -}}
{{- $root := .root }}
{{- $w := .spec }}
{{- if $w.Error }}{{ fail $w.Error }}{{ end }}
{{- $selector := include "baton.selector" (dict "root" $root "component" $w.component) | fromYaml }}
{{- with $w.labels }}{{ $selector = merge $selector . }}{{ end }}
{{- $labels := merge (include "baton.labels" (dict "root" $root "component" $w.component) | fromYaml) $selector }}
{{- $kind := $w.kind | default "Deployment" }}
{{- $own := include "baton.pod.keys" . | fromYaml }}
{{- include "baton.check.claims" . }}
apiVersion: apps/v1
kind: {{ $kind }}
metadata:
  name: {{ $w.name }}
  labels: {{- toYaml $labels | nindent 4 }}
spec:
  {{- if not $w.autoscaled }}
  replicas: {{ $w.replicas }}
  {{- else }}
  {{- with lookup "apps/v1" $kind $root.Release.Namespace $w.name }}
  # The scaler's number: without one, Kubernetes would make it 1 when the scaler is new.
  replicas: {{ .spec.replicas }}
  {{- end }}
  {{- end }}
  selector:
    matchLabels: {{- toYaml $selector | nindent 6 }}
  {{- if eq $kind "StatefulSet" }}
  serviceName: {{ $w.name }}
  podManagementPolicy: Parallel
  {{- else }}
  strategy:
    rollingUpdate: {{ if eq (toString $w.surge) "false" }}{maxSurge: 0, maxUnavailable: {{ $w.maxUnavailable | default 1 }}}{{ else }}{maxSurge: 1, maxUnavailable: 0}{{ end }}
  {{- with $w.progressDeadlineSeconds }}
  progressDeadlineSeconds: {{ . }}
  {{- end }}
  {{- end }}
  template:
    metadata:
      labels: {{- toYaml (merge (deepCopy $selector) $own.labels) | nindent 8 }}
      annotations:
        baton/checksum: {{ $w.checksum | default "" | toString | sha256sum | trunc 16 }}
        {{- with $own.annotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      {{- include "baton.pod" (dict "root" $root "spec" $w "own" $own) | nindent 6 }}
  {{- with $w.claims }}
  volumeClaimTemplates:
    {{- range . }}
    - metadata:
        name: {{ .name }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ .size }}}}
    {{- end }}
  {{- end }}
{{- if ne ($w.service | default "none") "none" }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $w.name }}
  labels: {{- toYaml $labels | nindent 4 }}
  {{- with $w.serviceAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if eq $w.service "balanced" }}
  type: {{ $w.serviceType | default "ClusterIP" }}
  {{- if eq ($w.serviceType | default "") "LoadBalancer" }}
  # Else all clients have the addresses of nodes, and share what is limited by address.
  externalTrafficPolicy: Local
  {{- with $w.loadBalancerClass }}
  loadBalancerClass: {{ . }}
  {{- end }}
  {{- with $w.loadBalancerSourceRanges }}
  loadBalancerSourceRanges: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- else }}
  clusterIP: None
  {{- end }}
  selector: {{- toYaml $selector | nindent 4 }}
  ports:
    {{- range $name, $port := $w.servicePorts | default $w.ports }}
    {{- if ne $name "admin" }}
    - {name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }}}
    {{- end }}
    {{- end }}
{{- end }}
{{- if or $w.autoscaled (gt (int $w.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $w.name }}
  labels: {{- toYaml $labels | nindent 4 }}
spec:
  maxUnavailable: {{ $w.maxUnavailable | default 1 }}
  # Pods that never became ready hold up no node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- toYaml $selector | nindent 6 }}
{{- end }}
{{- end }}

{{/* Seconds that a pod may take to end: preStop, drain and 10 s for what is left. */}}
{{- define "baton.grace" -}}
{{- $needed := add (.spec.preStop | default .root.Values.preStopSeconds) .spec.drainSeconds 10 }}
{{- $given := int .root.Values.terminationGracePeriodSeconds }}
{{- if and $given (lt $given (int $needed)) }}
{{- fail (printf "terminationGracePeriodSeconds is %d, but %s needs %d: preStop, drain and 10 s; raise it or set 0" $given .spec.name (int $needed)) }}
{{- end }}
{{- $given | default $needed }}
{{- end }}

{{/* A worker may load for startupSeconds; it is alive while it makes progress, and ready while it takes new work. */}}
{{- define "baton.probes" -}}
{{- $p := .probes }}
{{- $startup := $p.startupSeconds | default 120 }}
startupProbe:
  {{- include "baton.probe" (dict "p" $p "path" ($p.startup | default $p.ready)) | nindent 2 }}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: {{ $startup }}
readinessProbe:
  {{- include "baton.probe" (dict "p" $p "path" $p.ready "port" $p.readyPort "scheme" $p.readyScheme) | nindent 2 }}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  {{- include "baton.probe" (dict "p" $p "path" $p.live) | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 7
  failureThreshold: 3
{{- end }}

{{- define "baton.probe" -}}
{{- if .p.tcp -}}
tcpSocket: {port: {{ .p.port }}}
{{- else -}}
httpGet: {path: {{ .path }}, port: {{ .port | default .p.port }}{{ with .scheme }}, scheme: {{ . }}{{ end }}}
{{- end }}
{{- end }}
