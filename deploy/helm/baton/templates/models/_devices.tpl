{{/*
What follows from a pool's devices, filled into the pool: (dict "pool" $pool "model" $model). GPUs and RDMA are said once, as
`accelerator`, `parallelism` and `rdma`; resources, image, capabilities, variables, transports and memory follow.
*/}}
{{- define "baton.pool.devices" -}}
{{- $pool := .pool }}
{{- $a := $pool.accelerator }}
{{- $tensor := int $pool.parallelism.tensor }}
{{- $_ := set $pool "isGpu" (not (empty (or $a.resource $a.claim))) }}
{{- $_ = set $pool "isVllm" (eq ($pool.settings.engine | default "baton") "vllm") }}
{{- $_ = set $pool "imageName" (print "worker" (ternary "-vllm" "" $pool.isVllm) (ternary "-cuda" "" $pool.isGpu)) }}
{{- $_ = set $pool "resources" (deepCopy ($pool.resources | default dict)) }}
{{- range $part := list "requests" "limits" }}
{{- $_ = set $pool.resources $part (get $pool.resources $part | default dict) }}
{{- end }}
{{- if and $pool.isGpu (not (kindIs "invalid" (get $pool "securityContext" | default dict))) }}
{{- $_ = set $pool "securityContext" (merge ($pool.securityContext | default dict) (dict "readOnlyRootFilesystem" false)) }}
{{- end }}
{{- if eq (toString $pool.sharedMemory) "auto" }}
{{- $_ = set $pool "sharedMemory" (ternary (printf "%dGi" $tensor) "256Mi" (gt $tensor 1)) }}
{{- end }}
{{- include "baton.pool.rdma" $pool }}
{{- include "baton.pool.resources" . }}
{{- with .model.source.image }}
{{- if not (or .mount (hasKey $pool.resources.requests "ephemeral-storage")) }}
{{- /* Its copy is on the node's disk, which would else be shared out twice. */}}
{{- $_ = set $pool.resources.requests "ephemeral-storage" (printf "%dGi" (add 1 (ceil $.model.sizeGiB))) }}
{{- end }}
{{- end }}
{{- with $a.resource }}
{{- $_ = set $pool.resources.limits . (toString ($a.count | default $tensor)) }}
{{- end }}
{{- end }}

{{/* Transports, and what a pod needs to move blocks by RDMA. UCX takes the fastest of `devices`, or of all. */}}
{{- define "baton.pool.rdma" -}}
{{- $r := .rdma }}
{{- $uses := not (empty (or $r.resource $r.network $r.devices)) }}
{{- if not .settings.transports }}
{{- $_ := set .settings "transports" (ternary "nixl,grpc" "grpc" $uses) }}
{{- end }}
{{- $_ := set . "usesRdma" $uses }}
{{- if $uses }}
{{- $security := .securityContext | default dict }}
{{- $capabilities := $security.capabilities | default dict }}
{{- $_ = set $capabilities "add" (append ($capabilities.add | default list) "IPC_LOCK" | uniq) }}
{{- $_ = set $security "capabilities" $capabilities }}
{{- $_ = set . "securityContext" $security }}
{{- with $r.resource }}{{ $_ = set $.resources.limits . (toString $r.count) }}{{ end }}
{{- with $r.network }}
{{- $_ = set $ "annotations" (merge ($.annotations | default dict) (dict "k8s.v1.cni.cncf.io/networks" .)) }}
{{- end }}
{{- with $r.devices }}
{{- $_ = set $ "env" (merge ($.env | default dict) (dict "UCX_NET_DEVICES" .)) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
CPUs and memory that the values leave out. A worker on CPUs holds weights and KV pool. One on GPUs holds a staging ring through
which blocks are handed over, and 8 GiB for its processes and for the weights that are on their way to the GPU, one after the
other; /dev/shm is memory of the pod, too.
*/}}
{{- define "baton.pool.resources" -}}
{{- $pool := .pool }}
{{- $requests := $pool.resources.requests }}
{{- $limits := $pool.resources.limits }}
{{- if not (or $requests.cpu $limits.cpu) }}
{{- $_ := set $requests "cpu" (ternary (mul 4 $pool.parallelism.tensor | toString) "250m" $pool.isGpu) }}
{{- end }}
{{- if $pool.isGpu }}
{{- $needs := include "baton.pool.host-memory" . }}
{{- $_ := set $pool "hostMemoryGiB" $needs }}
{{- $memory := $limits.memory | default $requests.memory }}
{{- if and (not $memory) $needs }}{{ $memory = printf "%sGi" $needs }}{{ end }}
{{- if $memory }}
{{- $_ = set $limits "memory" $memory }}
{{- $_ = set $requests "memory" ($requests.memory | default $memory) }}
{{- end }}
{{- else }}
{{- $kv := include "baton.pool.kv" . | float64 }}
{{- $weights := include "baton.pool.weights" . | float64 }}
{{- $_ := set $requests "memory" ($requests.memory | default (printf "%.0fMi" (addf 768 (mulf 1024 (addf $weights $kv)) | ceil))) }}
{{- $_ = set $limits "memory" ($limits.memory | default (printf "%.0fGi" (maxf 2 (addf 1 (mulf 1.25 $weights) (maxf 0.5 $kv) | ceil)))) }}
{{- end }}
{{- end }}

{{/* GiB of weights in memory, and of the KV pool if the settings say it (else 0). */}}
{{- define "baton.pool.weights" -}}
{{- mulf .model.sizeGiB (ternary 2 1 (eq (.pool.settings.dtype | default "auto") "float32")) }}
{{- end }}

{{- define "baton.pool.kv" -}}
{{- $kv := .pool.settings.kv_memory | default "auto" }}
{{- if eq $kv "auto" }}0{{ else }}{{ divf (include "baton.bytes" $kv | float64) 1073741824.0 }}{{ end }}
{{- end }}

{{/* GiB that the worker takes of its GPUs; 0 = not known. */}}
{{- define "baton.pool.gpu-memory" -}}
{{- mulf .pool.gpuMemoryGiB .pool.parallelism.tensor (.pool.settings.memory_share | default 0.8) }}
{{- end }}

{{/* GiB of the staging ring of a worker on GPUs whose KV pool has so many: a quarter, 16 at most, or as the settings say. */}}
{{- define "baton.pool.staging" -}}
{{- $staging := .pool.settings.staging_memory | default "auto" }}
{{- if eq $staging "auto" }}{{ minf 16 (divf .kv 4) }}{{ else }}{{ divf (include "baton.bytes" $staging | float64) 1073741824.0 }}{{ end }}
{{- end }}

{{/* GiB of host memory of a worker on GPUs; empty where neither kv_memory nor gpuMemoryGiB says how large the pool is. The worker
is told how large its ring is, so that it takes no more than was counted. */}}
{{- define "baton.pool.host-memory" -}}
{{- $weights := include "baton.pool.weights" . | float64 }}
{{- $kv := include "baton.pool.kv" . | float64 }}
{{- $gpu := include "baton.pool.gpu-memory" . | float64 }}
{{- if and (eq $kv 0.0) (gt $gpu 0.0) }}{{ $kv = maxf 1 (subf $gpu $weights) }}{{ end }}
{{- if gt $kv 0.0 }}
{{- $shm := divf (include "baton.bytes" (.pool.sharedMemory | default "0") | float64) 1073741824.0 }}
{{- $staging := include "baton.pool.staging" (dict "pool" .pool "kv" $kv) | float64 }}
{{- $_ := set .pool.settings "staging_memory" (printf "%.0fMiB" (mulf 1024 $staging | floor)) }}
{{- addf 8 $staging $shm | ceil }}
{{- end }}
{{- end }}
