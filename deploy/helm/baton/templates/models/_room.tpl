{{/*
The room of a worker's KV pool in tokens, by the formula of `baton size`: what weights, activations and the driver (on CPUs
the processes) leave of its share of memory, in whole blocks, and never more than full batches of the longest sequences.
Defaults are those of the worker's settings.
*/}}

{{/* GiB that one device leaves a worker before it loads: without a GPU its memory limit. 0 = not known. */}}
{{- define "baton.pool.free" -}}
{{- if .pool.isGpu }}
{{- maxf 0 (mulf (subf .pool.gpuMemoryGiB 0.6) .pool.parallelism.tensor) }}
{{- else }}
{{- maxf 0 (subf (divf (include "baton.bytes" .pool.resources.limits.memory | float64) 1073741824.0) 0.5) }}
{{- end }}
{{- end }}

{{/* GiB of the KV pool; what is below 0 is missing. */}}
{{- define "baton.pool.room" -}}
{{- $kv := include "baton.pool.kv" . | float64 }}
{{- $share := mulf (include "baton.pool.free" .) (.pool.settings.memory_share | default 0.8) }}
{{- $activations := mulf .pool.activationGiB .pool.parallelism.tensor }}
{{- if gt $kv 0.0 }}{{ $kv }}{{ else }}{{ subf $share (include "baton.pool.weights" .) $activations }}{{ end }}
{{- end }}

{{- define "baton.pool.max-batch" -}}
{{ .pool.settings.max_batch | default 64 | int }}
{{- end }}

{{/* Tokens of the longest sequence: as the pool is told, else as the model has it; 0 = not known. */}}
{{- define "baton.pool.max-len" -}}
{{ .pool.settings.max_model_len | default .model.maxModelLen | default 0 | int }}
{{- end }}

{{/* Bytes of one token in the KV pool; 0 = not known. */}}
{{- define "baton.pool.token-bytes" -}}
{{- mul (.model.kvBytesPerToken | default 0 | int) (ternary 2 1 (eq (.pool.settings.dtype | default "auto") "float32")) }}
{{- end }}

{{/* Tokens that the KV pool holds; empty = not known. */}}
{{- define "baton.pool.tokens" -}}
{{- $token := include "baton.pool.token-bytes" . | int }}
{{- if and $token (or (include "baton.pool.kv" . | float64) (include "baton.pool.free" . | float64)) }}
{{- $block := .pool.settings.block_size | default (ternary 32 16 (eq (.pool.settings.engine | default "baton") "vllm")) | int }}
{{- $bytes := mulf 1073741824.0 (include "baton.pool.room" . | float64) }}
{{- $tokens := mul $block (divf $bytes (mul $block $token) | floor | int) }}
{{- $longest := include "baton.pool.max-len" . | int }}
{{- ternary (min $tokens (mul $longest (include "baton.pool.max-batch" .))) $tokens (gt $longest 0) }}
{{- end }}
{{- end }}

{{/* A pool below four of the longest sequences, or 512 tokens for each sequence of a full batch, computes the same again
and again. */}}
{{- define "baton.check.room" -}}
{{- with include "baton.pool.tokens" . }}
{{- $tokens := int . }}
{{- $batch := include "baton.pool.max-batch" $ | int }}
{{- $longest := include "baton.pool.max-len" $ | int }}
{{- $lengths := min 4 $batch }}
{{- $slot := ternary (min 512 $longest) 512 (gt $longest 0) }}
{{- $what := printf "%s: its KV cache holds %d tokens (%.1f GiB)" $.where $tokens (include "baton.pool.room" $ | float64) }}
{{- if lt $tokens (mul $lengths $longest | int) }}
{{- fail (printf "%s, fewer than %d sequences of %d tokens: set settings.max_model_len to %d or less, or give it more memory, or more GPUs with settings.engine: vllm and parallelism.tensor" $what $lengths $longest (div (max 0 $tokens) $lengths)) }}
{{- end }}
{{- if lt $tokens (mul $slot $batch | int) }}
{{- fail (printf "%s, fewer than %d for each of %d sequences: set settings.max_batch to %d or less, or give it more memory" $what $slot $batch (div (max 0 $tokens) $slot)) }}
{{- end }}
{{- end }}
{{- end }}
