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
  probes        {startup, ready, live}: paths on port `port` (ready: on `readyPort`, if given);
                startupSeconds; tcp: true = connect only
  drainSeconds  what it may take after SIGTERM    preStop     seconds before SIGTERM
  service       none | balanced | headless | each (headless, also for pods that are not ready)
  minReady      seconds that a new pod is ready before the next old one goes
  pool          scheduling: nodeSelector, tolerations, ... of a worker pool
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
  {{- with $w.minReady }}
  minReadySeconds: {{ . }}
  {{- end }}
  {{- if eq $kind "StatefulSet" }}
  serviceName: {{ $w.name }}
  podManagementPolicy: Parallel
  {{- else }}
  strategy:
    rollingUpdate: {{ if eq (toString $w.surge) "false" }}{maxSurge: 0, maxUnavailable: 1}{{ else }}{maxSurge: 1, maxUnavailable: 0}{{ end }}
  {{- with $w.progressDeadlineSeconds }}
  progressDeadlineSeconds: {{ . }}
  {{- end }}
  {{- end }}
  template:
    metadata:
      labels: {{- toYaml (merge (deepCopy $selector) $root.Values.podLabels) | nindent 8 }}
      annotations:
        baton/checksum: {{ $w.checksum | default "" | toString | sha256sum | trunc 16 }}
        {{- with $root.Values.podAnnotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      {{- include "baton.pod" . | nindent 6 }}
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
  {{- end }}
  {{- else }}
  clusterIP: None
  publishNotReadyAddresses: {{ eq $w.service "each" }}
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
  maxUnavailable: 1
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

{{- define "baton.pod" -}}
{{- $root := .root }}
{{- $w := .spec }}
{{- $pool := $w.pool | default $root.Values.scheduling }}
serviceAccountName: {{ include "baton.fullname" $root }}{{ with $w.account }}-{{ . }}{{ end }}
automountServiceAccountToken: {{ not (empty $w.account) }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "baton.grace" . | trim }}
{{- include "baton.pod.security" $root }}
{{- include "baton.pod.place" $pool }}
{{- if ne (toString $pool.spreadOver) "" }}
topologySpreadConstraints:
  - topologyKey: {{ $pool.spreadOver | default "kubernetes.io/hostname" }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "baton.selector" (dict "root" $root "component" $w.component) | nindent 8 }}
        {{- with $w.labels }}{{ toYaml . | nindent 8 }}{{ end }}
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
    {{- if or $w.env $w.fieldEnv }}
    env:
      {{- range $name, $value := $w.env }}
      - {name: {{ $name }}, value: {{ $value | toString | quote }}}
      {{- end }}
      {{- range $name, $path := $w.fieldEnv }}
      - {name: {{ $name }}, valueFrom: {fieldRef: {fieldPath: {{ $path | quote }}}}}
      {{- end }}
    {{- end }}
    ports:
      {{- range $name, $port := $w.ports }}
      - {name: {{ $name }}, containerPort: {{ $port }}}
      {{- end }}
    {{- include "baton.probes" $w | nindent 4 }}
    lifecycle:
      preStop: {sleep: {seconds: {{ $w.preStop | default $root.Values.preStopSeconds }}}}
    resources: {{- toYaml $w.resources | nindent 6 }}
    securityContext: {{- include "baton.container.security" $root | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- range concat ($w.volumes | default list) ($w.claims | default list) }}
      - name: {{ .name }}
        mountPath: {{ .path }}
        {{- if .readOnly }}
        readOnly: true
        {{- end }}
      {{- end }}
volumes:
  - {name: tmp, emptyDir: {sizeLimit: 1Gi}}
  {{- range $w.volumes }}
  - name: {{ .name }}
    {{- toYaml .source | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Nodes for a pod, from its pool or from `scheduling`. */}}
{{- define "baton.pod.place" }}
{{- range $name := list "nodeSelector" "tolerations" "runtimeClassName" "priorityClassName" }}
{{- with get $ $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings that the "restricted" Pod Security Standard requires. */}}
{{- define "baton.pod.security" }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "baton.container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A worker may load for startupSeconds; it is alive while it makes progress, and ready while it takes new work. */}}
{{- define "baton.probes" -}}
{{- $p := .probes }}
{{- $startup := $p.startupSeconds | default 120 }}
startupProbe:
  {{- include "baton.probe" (dict "p" $p "path" ($p.startup | default $p.ready)) | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ div (add $startup 4) 5 }}
readinessProbe:
  {{- include "baton.probe" (dict "p" $p "path" $p.ready "port" $p.readyPort) | nindent 2 }}
  periodSeconds: 2
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
httpGet: {path: {{ .path }}, port: {{ .port | default .p.port }}}
{{- end }}
{{- end }}
