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
{{- range $path, $url := dict "redis.url" .Values.redis.url "tracing.endpoint" .Values.tracing.endpoint "hub.endpoint" .Values.hub.endpoint }}
{{- if contains "@" $url }}
{{- fail (printf "%s holds a user or password: secrets are never values" $path) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.check.redis" -}}
{{- $r := .Values.redis }}
{{- if and $r.enabled (or $r.url $r.existingSecret $r.username $r.caSecret) }}
{{- fail "redis.enabled is the bundled Redis; for your own (url, existingSecret, username, caSecret) set redis.enabled: false" }}
{{- end }}
{{- if and (not $r.enabled) (not $r.url) }}
{{- fail "redis.enabled is false: say where your Redis is in redis.url" }}
{{- end }}
{{- if and $r.username (not $r.existingSecret) }}
{{- fail "redis.username needs redis.existingSecret with its password" }}
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
{{- if and .Values.httpRoute.enabled .Values.envoy.enabled }}
{{- fail "httpRoute leads to the gateway Service, past Envoy: set envoy.enabled: false" }}
{{- end }}
{{- with .Values.gateway.autoscaling }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail "gateway.autoscaling: minReplicas is above maxReplicas" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.check.models" -}}
{{- $ids := list }}
{{- range $model := include "baton.models" . | fromYamlArray }}
{{- $id := include "baton.model.id" $model }}
{{- if has $id $ids }}
{{- fail (printf "models: %q would be called %q in the cluster like another one: rename one" $model.name $id) }}
{{- end }}
{{- $ids = append $ids $id }}
{{- range $role := list "prefill" "decode" }}
{{- include "baton.check.pool" (dict "root" $ "model" $model "role" $role "pool" (include "baton.pool" (dict "root" $ "model" $model "role" $role) | fromYaml)) }}
{{- end }}
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
{{- $limits := $pool.resources.limits | default dict }}
{{- if not (and $limits.memory ($pool.resources.requests | default dict).memory) }}
{{- fail (printf "%s.resources: a worker needs a memory request and limit" $where) }}
{{- end }}
{{- if gt (int (get $limits "nvidia.com/gpu" | default 0)) 1 }}
{{- fail (printf "%s.resources: a worker uses one GPU; ask for one and set more replicas" $where) }}
{{- end }}
{{- include "baton.check.memory" (merge (dict "where" $where "limits" $limits) .) }}
{{- end }}

{{/* Weights, KV pool and 0.5 GiB for the processes must fit; on a GPU, into the share that the worker takes. */}}
{{- define "baton.check.memory" -}}
{{- $gib := 1073741824.0 }}
{{- $kv := .pool.settings.kv_memory | default "auto" }}
{{- $kvGiB := 0.0 }}
{{- if ne $kv "auto" }}{{ $kvGiB = divf (include "baton.bytes" $kv | float64) $gib }}{{ end }}
{{- $weights := float64 .model.sizeGiB }}
{{- if eq (.pool.settings.dtype | default "auto") "float32" }}{{ $weights = mulf 2 $weights }}{{ end }}
{{- if hasKey .limits "nvidia.com/gpu" }}
{{- $share := .pool.settings.memory_share | default 0.8 | float64 }}
{{- $has := mulf .pool.gpuMemoryGiB $share }}
{{- $needs := addf $weights $kvGiB }}
{{- if and (gt (float64 .pool.gpuMemoryGiB) 0.0) (gt $needs $has) }}
{{- fail (printf "%s: weights and KV pool need %.1f GiB, but %.0f %% of a GPU with %v GiB are %.1f GiB" .where $needs (mulf 100 $share) .pool.gpuMemoryGiB $has) }}
{{- end }}
{{- else }}
{{- $has := divf (include "baton.bytes" .limits.memory | float64) $gib }}
{{- $needs := addf $weights $kvGiB 0.5 }}
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
