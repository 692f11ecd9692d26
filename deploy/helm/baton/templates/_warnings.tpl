{{/* What works, and is perhaps not meant: one sentence a line, in NOTES. */}}
{{- define "baton.warnings" -}}
{{- range $model := include "baton.models" . | fromYamlArray }}
{{- with $model.source.hub }}
{{- if not (regexMatch "^[0-9a-f]{40}$" (.revision | default "")) }}
models.{{ $model.name }}: hub.revision is no commit: a download at another time may have other files, and workers with other files never work together.
{{- end }}
{{- end }}
{{- if and (not $model.source.demo) (not $model.kvBytesPerToken) }}
models.{{ $model.name }}: without kvBytesPerToken and maxModelLen (`baton size` prints them) nobody checks that its KV caches are large enough.
{{- end }}
{{- range $role := list "prefill" "decode" }}
{{- $pool := include "baton.pool" (dict "root" $ "model" $model "role" $role) | fromYaml }}
{{- $where := printf "models.%s.%s" $model.name $role }}
{{- if and $pool.isGpu (not (contains "nixl" $pool.settings.transports)) }}
{{ $where }}: KV blocks go from GPU to GPU by gRPC, at about 1 GB/s a worker; rdma names a faster network.
{{- end }}
{{- if and $pool.usesRdma (not $pool.rdma.devices) }}
{{ $where }}: rdma.devices is empty: UCX may choose a network card that is not the RDMA network's.
{{- end }}
{{- if and $pool.isVllm $pool.isGpu }}
{{- if not ($pool.image | default dict).repository }}
{{ $where }}: releases do not build {{ print "baton-" $pool.imageName }}; make images IMAGES={{ $pool.imageName }} REGISTRY=HOST/TEAM PUSH=1 does, and image.registry or the pool's image.repository names it.
{{- end }}
{{- if eq (toString $pool.settings.unproven) "on" }}
{{ $where }}: vLLM's engine never ran on a GPU (settings.unproven); let it serve nobody before `python -m bench gpu --engine vllm` has held there.
{{- else }}
{{ $where }}: vLLM's engine starts on GPUs only with settings.unproven: "on"; it never ran on one.
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
