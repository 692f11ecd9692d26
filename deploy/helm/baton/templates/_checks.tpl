{{/*
Checks that the schema cannot express; each refuses with a sentence: secrets in values, pools that cannot hold their
model, sources that do not fit, custom resources that the cluster does not know.
*/}}

{{- define "baton.checks" -}}
{{- include "baton.check.secrets" . }}
{{- include "baton.check.redis" . }}
{{- include "baton.check.certificates" . }}
{{- include "baton.check.tracing" . }}
{{- include "baton.check.way-in" . }}
{{- include "baton.check.models" . }}
{{- include "baton.check.custom-resources" . }}
{{- end }}

{{- define "baton.check.secrets" -}}
{{- $advice := dict "auth.apiKey" "auth.existingSecret" "auth.serverSecret" "auth.existingSecret" "hub.token" "hub.existingSecret" "redis.password" "redis.existingSecret" "tls.key" "tls.existingSecret" "tracing.headers" "tracing.headersSecret" }}
{{- range $path, $instead := $advice }}
{{- $parts := splitList "." $path }}
{{- if hasKey (get $.Values (first $parts)) (last $parts) }}
{{- fail (printf "%s: secrets are never values, for they end in Helm's history; make a Secret and name it in %s" $path $instead) }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.hub.env }}
{{- $isSecret := and (regexMatch "(SECRET|_TOKEN|_KEY)$" $name) (not (contains "DISABLE" $name)) }}
{{- if and $isSecret $value (not (kindIs "map" $value)) }}
{{- fail (printf "hub.env.%s: secrets are never values, for they end in Helm's history; write {secretKeyRef: {name: ..., key: ...}}" $name) }}
{{- end }}
{{- end }}
{{- range $path, $url := dict "redis.url" .Values.redis.url "tracing.endpoint" .Values.tracing.endpoint "hub.endpoint" .Values.hub.endpoint }}
{{- if contains "@" $url }}
{{- fail (printf "%s holds a user or password: secrets are never values" $path) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.check.redis" -}}
{{- $r := .Values.redis }}
{{- if and $r.enabled (or $r.url $r.username $r.caSecret) }}
{{- fail "redis.enabled is the bundled Redis; for your own (url, username, caSecret) set redis.enabled: false" }}
{{- end }}
{{- if and (not $r.enabled) (not $r.url) }}
{{- fail "redis.enabled is false: say where your Redis is in redis.url" }}
{{- end }}
{{- if and $r.username (not $r.existingSecret) }}
{{- fail "redis.username needs redis.existingSecret with its password" }}
{{- end }}
{{- if and $r.sentinelPasswordKey (not (contains "+sentinel:" $r.url)) }}
{{- fail "redis.sentinelPasswordKey is for redis+sentinel:// in redis.url only" }}
{{- end }}
{{- if and $r.sentinelPasswordKey (not $r.existingSecret) }}
{{- fail "redis.sentinelPasswordKey names a key of redis.existingSecret: name that Secret" }}
{{- end }}
{{- if and $r.caSecret (not (hasPrefix "rediss" $r.url)) }}
{{- fail "redis.caSecret is for rediss:// only" }}
{{- end }}
{{- end }}

{{- define "baton.check.certificates" -}}
{{- $t := .Values.tls }}
{{- if and (eq $t.mode "existingSecret") (not $t.existingSecret) }}
{{- fail "tls.mode is existingSecret: name it in tls.existingSecret" }}
{{- end }}
{{- if and (ne $t.mode "existingSecret") $t.existingSecret }}
{{- fail (printf "tls.existingSecret is set, but tls.mode is %s" $t.mode) }}
{{- end }}
{{- if and (ne $t.mode "existingSecret") $t.perService }}
{{- fail (printf "tls.perService is set, but tls.mode is %s" $t.mode) }}
{{- end }}
{{- end }}

{{- define "baton.check.tracing" -}}
{{- if and .Values.tracing.caSecret (not (hasPrefix "https://" .Values.tracing.endpoint)) }}
{{- fail "tracing.caSecret is for an https:// tracing.endpoint only" }}
{{- end }}
{{- if and .Values.tracing.headersSecret (not .Values.tracing.endpoint) }}
{{- fail "tracing.headersSecret is for a tracing.endpoint of your own" }}
{{- end }}
{{- end }}

{{- define "baton.check.way-in" -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.enabled: name the Gateway in httpRoute.parentRefs" }}
{{- end }}
{{- if and .Values.httpRoute.enabled .Values.envoy.enabled .Values.envoy.tlsSecret }}
{{- fail "httpRoute leads to Envoy over plain HTTP, which envoy.tlsSecret switches off: the Gateway ends the clients' TLS; leave envoy.tlsSecret empty, or set envoy.enabled: false" }}
{{- end }}
{{- if and .Values.loadtest.enabled .Values.envoy.enabled .Values.envoy.tlsSecret (not .Values.loadtest.url) }}
{{- fail "loadtest: envoy.tlsSecret's certificate is for another name than the Service's; say it in loadtest.url, as https://..." }}
{{- end }}
{{- with .Values.gateway.autoscaling }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail "gateway.autoscaling: minReplicas is above maxReplicas" }}
{{- end }}
{{- $cpu := ($.Values.gateway.resources.requests | default dict).cpu | default "0" | toString }}
{{- $cores := trimSuffix "m" $cpu | float64 }}
{{- if hasSuffix "m" $cpu }}{{ $cores = divf $cores 1000 }}{{ end }}
{{- if and .enabled (lt $cores 0.5) }}
{{- fail (printf "gateway.autoscaling counts in parts of resources.requests.cpu, and %v is passed by any load: a gateway takes up to a core, so say 500m or more" $cpu) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.check.models" -}}
{{- $ids := list }}
{{- $modes := list }}
{{- range $model := include "baton.models" . | fromYamlArray }}
{{- $id := include "baton.model.id" $model }}
{{- if has $id $ids }}
{{- fail (printf "models: %q would be called %q in the cluster like another one: rename one" $model.name $id) }}
{{- end }}
{{- $ids = append $ids $id }}
{{- range $role := list "prefill" "decode" }}
{{- $pool := include "baton.pool" (dict "root" $ "model" $model "role" $role) | fromYaml }}
{{- include "baton.check.pool" (dict "root" $ "model" $model "role" $role "pool" $pool) }}
{{- $modes = append $modes $pool.autoscaling.mode }}
{{- end }}
{{- end }}
{{- if and (has "hpa" $modes) (has "keda" $modes) }}
{{- fail "autoscaling.mode is hpa in one pool and keda in another: a cluster has one server of external metrics, KEDA's or an adapter's, so one of them would never scale; choose one" }}
{{- end }}
{{- end }}

{{- define "baton.check.pool" -}}
{{- $where := printf "models.%s.%s" .model.name .role }}
{{- $pool := .pool }}
{{- $auto := $pool.autoscaling }}
{{- if not (hasKey .root.Values.storage $pool.storage) }}
{{- fail (printf "%s.storage: there is no storage.%s" $where $pool.storage) }}
{{- end }}
{{- if and (eq .role "decode") (eq (int $pool.replicas) 0) (eq $auto.mode "none") }}
{{- fail (printf "%s.replicas is 0: without a decode worker nothing is answered" $where) }}
{{- end }}
{{- if and (ne $auto.mode "none") (gt (int $auto.minReplicas) (int $auto.maxReplicas)) }}
{{- fail (printf "%s.autoscaling: minReplicas is above maxReplicas" $where) }}
{{- end }}
{{- include "baton.check.devices" (dict "where" $where "pool" $pool) }}
{{- include "baton.check.memory" (merge (dict "where" $where) .) }}
{{- include "baton.check.room" (merge (dict "where" $where) .) }}
{{- if and (.model.source.image).mount (semverCompare "<1.33.0-0" .root.Capabilities.KubeVersion.Version) }}
{{- fail (printf "models.%s.source.image.mount: a volume from an image needs Kubernetes 1.33 or newer (before 1.35 with the feature gate ImageVolume), and this is %s; without mount it is copied" .model.name .root.Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .model.source.demo $pool.isGpu (gt (len (include "baton.models" .root | fromYamlArray)) 1) }}
{{- fail (printf "%s: the demo model would take GPUs beside yours; leave it out with models.%s: null" $where .model.name) }}
{{- end }}
{{- end }}

{{/* Devices are NVIDIA's, and said as `accelerator`: under `resources` a worker would hold one and compute on CPUs. */}}
{{- define "baton.check.devices" -}}
{{- $where := .where }}
{{- $pool := .pool }}
{{- $a := $pool.accelerator }}
{{- $tensor := int $pool.parallelism.tensor }}
{{- if and $a.resource (not (hasPrefix "nvidia.com/" $a.resource)) }}
{{- fail (printf "%s.accelerator.resource: %s is not served: Baton computes on NVIDIA's GPUs (nvidia.com/gpu, nvidia.com/mig-...) and on CPUs" $where $a.resource) }}
{{- end }}
{{- range $name, $_ := merge dict $pool.resources.limits $pool.resources.requests }}
{{- if and (ne $name $a.resource) (ne $name $pool.rdma.resource) (regexMatch "(?i)gpu|mig-|gaudi|/tpu|neuron|/npu|^(nvidia|amd)\\.com/" $name) }}
{{- fail (printf "%s.resources: %s looks like an accelerator; say accelerator: {resource: nvidia.com/gpu} (or another one of nvidia.com), which sets it, the image and the device" $where $name) }}
{{- end }}
{{- end }}
{{- $claims := list }}
{{- range $pool.resourceClaims }}{{ $claims = append $claims .name }}{{ end }}
{{- if and $a.claim (not (has $a.claim $claims)) }}
{{- fail (printf "%s.accelerator.claim: there is no %q in resourceClaims" $where $a.claim) }}
{{- end }}
{{- if and $a.resource $a.count (ne (int $a.count) $tensor) }}
{{- fail (printf "%s.accelerator.count is %d, but parallelism.tensor is %d: a worker uses one device for each rank; leave count out, and set replicas for more workers" $where (int $a.count) $tensor) }}
{{- end }}
{{- if and (gt $tensor 1) (ne ($pool.settings.engine | default "baton") "vllm") }}
{{- fail (printf "%s.parallelism.tensor is %d: Baton's engine computes a worker on one device; more are for settings.engine: vllm" $where $tensor) }}
{{- end }}
{{- if and $pool.parallelism.expert (eq $tensor 1) }}
{{- fail (printf "%s.parallelism.expert: the experts are divided among ranks, and parallelism.tensor is 1" $where) }}
{{- end }}
{{- if and (gt $tensor 1) (contains "/mig-" $a.resource) }}
{{- fail (printf "%s.parallelism.tensor is %d: slices of GPUs (%s) do not work together" $where $tensor $a.resource) }}
{{- end }}
{{- if and $pool.usesRdma (not (contains "nixl" $pool.settings.transports)) }}
{{- fail (printf "%s.rdma is for NIXL, which settings.transports (%s) leaves out" $where $pool.settings.transports) }}
{{- end }}
{{- end }}

{{/* Weights, KV pool and 0.5 GiB for the processes must fit; on GPUs, into the share that the worker takes, and its host
memory, which is pinned, must be there whole. */}}
{{- define "baton.check.memory" -}}
{{- $weights := include "baton.pool.weights" . | float64 }}
{{- $kv := include "baton.pool.kv" . | float64 }}
{{- $limits := .pool.resources.limits }}
{{- if .pool.isGpu }}
{{- $has := include "baton.pool.gpu-memory" . | float64 }}
{{- $needs := addf $weights $kv }}
{{- if and (gt $has 0.0) (gt $needs $has) }}
{{- fail (printf "%s: weights and KV pool need %.1f GiB, but %.0f %% of %v with %v GiB are %.1f GiB" .where $needs (mulf 100 (.pool.settings.memory_share | default 0.8)) (ternary "a GPU" (printf "%v GPUs" .pool.parallelism.tensor) (eq (int .pool.parallelism.tensor) 1)) .pool.gpuMemoryGiB $has) }}
{{- end }}
{{- if not $limits.memory }}
{{- fail (printf "%s: say gpuMemoryGiB, from which the host memory follows, or resources.limits.memory" .where) }}
{{- end }}
{{- if ne (include "baton.bytes" $limits.memory) (include "baton.bytes" .pool.resources.requests.memory) }}
{{- fail (printf "%s.resources: requests.memory is %v and limits.memory is %v, but the host memory of a GPU worker is pinned: leave requests.memory out" .where .pool.resources.requests.memory $limits.memory) }}
{{- end }}
{{- $host := divf (include "baton.bytes" $limits.memory | float64) 1073741824.0 }}
{{- if gt (.pool.hostMemoryGiB | default 0 | float64) $host }}
{{- fail (printf "%s: the staging ring, /dev/shm and processes need %v GiB of host memory, but resources.limits.memory is %.1f GiB" .where .pool.hostMemoryGiB $host) }}
{{- end }}
{{- else }}
{{- $has := divf (include "baton.bytes" $limits.memory | float64) 1073741824.0 }}
{{- $needs := addf $weights $kv 0.5 }}
{{- if gt $needs $has }}
{{- fail (printf "%s: weights, KV pool and processes need %.1f GiB, but resources.limits.memory is %.1f GiB" .where $needs $has) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The claims of a StatefulSet never change; the chart refuses before Kubernetes does, in clearer words. */}}
{{- define "baton.check.claims" -}}
{{- $name := .spec.name }}
{{- $wants := dict }}
{{- range .spec.claims }}{{ $_ := set $wants .name (include "baton.bytes" .size) }}{{ end }}
{{- if eq (.spec.kind | default "") "StatefulSet" }}
{{- with lookup "apps/v1" "StatefulSet" .root.Release.Namespace $name }}
{{- $has := dict }}
{{- range .spec.volumeClaimTemplates }}{{ $_ := set $has .metadata.name (include "baton.bytes" .spec.resources.requests.storage) }}{{ end }}
{{- if ne (toJson $wants) (toJson $has) }}
{{- fail (printf "%s: Kubernetes changes no volume of a StatefulSet that is there. Run: kubectl -n %s delete statefulset %s --cascade=orphan (its pods, claims and their data stay), then upgrade again; a claim that is there keeps its size until it is edited" $name .metadata.namespace $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.check.custom-resources" -}}
{{- $keda := false }}
{{- range $model := include "baton.models" . | fromYamlArray }}
{{- range $role := list "prefill" "decode" }}
{{- $pool := include "baton.pool" (dict "root" $ "model" $model "role" $role) | fromYaml }}
{{- if eq $pool.autoscaling.mode "keda" }}{{ $keda = true }}{{ end }}
{{- end }}
{{- end }}
{{- $m := .Values.monitoring }}
{{- $needs := list
  (list "cert-manager.io/v1" "tls.mode: certManager" (eq .Values.tls.mode "certManager"))
  (list "gateway.networking.k8s.io/v1" "httpRoute.enabled" .Values.httpRoute.enabled)
  (list "monitoring.coreos.com/v1" "monitoring.podMonitor and monitoring.rules" (or $m.podMonitor.enabled $m.rules.enabled))
  (list "keda.sh/v1alpha1" "autoscaling.mode: keda" $keda) }}
{{- range $needs }}
{{- if and (index . 2) (not ($.Capabilities.APIVersions.Has (index . 0))) }}
{{- fail (printf "%s needs the custom resources of %s, which this cluster does not have: install them first (helm template: --api-versions %s)" (index . 1) (index . 0) (index . 0)) }}
{{- end }}
{{- end }}
{{- end }}
