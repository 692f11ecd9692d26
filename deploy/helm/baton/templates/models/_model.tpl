{{/*
The files of a model. Every source becomes one folder, /models/<id>, mounted read-only into the
model's workers; a worker knows nothing of hubs, and tokenizers have what they need from workers.

A model of a hub or a store is downloaded by one Job per model and storage name into one claim. Pods that mount the
claim wait, in an init container, for the file that the Job writes last: so there is one download
however many replicas start at once, no lock, and nothing that runs on nodes.
*/}}

{{/* Folder of a model inside the containers. */}}
{{- define "baton.model.folder" -}}
{{- if .source.demo }}/app/baton/demo_model
{{- else }}/models/{{ include "baton.model.id" . }}{{ with (.source.volume).path }}/{{ trimAll "/" . }}{{ end }}
{{- if (.source.image).mount }}{{ with trimAll "/" .source.image.path }}/{{ . }}{{ end }}{{ end }}
{{- end }}
{{- end }}

{{/* What a model is downloaded from; empty where its files are there. */}}
{{- define "baton.model.fetched" -}}
{{- with .source.hub }}{{ .repository }}{{ end }}{{ with .source.store }}{{ .url }}{{ end }}
{{- end }}

{{/* The claim of a download; its name changes with the files and the storage. */}}
{{- define "baton.model.download" -}}
{{- $revision := ternary ((.model.source.hub).revision | default "main") "" (hasKey .model.source "hub") }}
{{- $what := printf "%s@%s %v %s %v" (include "baton.model.fetched" .model) $revision .model.sizeGiB .storage (get .root.Values.storage .storage) | sha256sum | trunc 6 }}
{{- $where := ternary "" (printf "-%s" .storage) (eq .storage "default") }}
{{- $name := printf "%s-%s%s" (include "baton.fullname" .root) (include "baton.model.id" .model) $where }}
{{- printf "%s-%s" ($name | trunc 56 | trimSuffix "-") $what }}
{{- end }}

{{/* The seconds that a model's download may take; 0 without one. */}}
{{- define "baton.download.seconds" -}}
{{- $seconds := .root.Values.hub.deadlineSeconds | int | default (add 600 (mulf 60 .model.sizeGiB | ceil | int)) }}
{{- ternary $seconds 0 (ne (include "baton.model.fetched" .model) "") }}
{{- end }}

{{/* Volumes of a workload for one model, as _workload.tpl takes them. */}}
{{- define "baton.model.volumes" -}}
{{- $source := .model.source }}
{{- $id := include "baton.model.id" .model }}
{{- if include "baton.model.fetched" .model }}
- name: model-{{ $id }}
  path: /models/{{ $id }}
  readOnly: true
  source: {persistentVolumeClaim: {claimName: {{ include "baton.model.download" . }}}}
{{- else if $source.volume }}
- name: model-{{ $id }}
  path: /models/{{ $id }}
  readOnly: true
  source: {persistentVolumeClaim: {claimName: {{ $source.volume.claim }}}}
{{- else if $source.hostPath }}
- name: model-{{ $id }}
  path: /models/{{ $id }}
  readOnly: true
  source: {hostPath: {path: {{ $source.hostPath.path }}, type: Directory}}
{{- else if ($source.image).mount }}
- name: model-{{ $id }}
  path: /models/{{ $id }}
  readOnly: true
  source: {image: {reference: {{ $source.image.reference }}, pullPolicy: {{ .root.Values.image.pullPolicy }}}}
{{- else if $source.image }}
- name: model-{{ $id }}
  path: /models/{{ $id }}
  readOnly: true
  source: {emptyDir: {sizeLimit: {{ printf "%dGi" (add 1 (ceil .model.sizeGiB)) }}}}
{{- else }}
[]
{{- end }}
{{- end }}

{{/* Init containers of a workload for one model. */}}
{{- define "baton.model.init" -}}
{{- $source := .model.source }}
{{- $id := include "baton.model.id" .model }}
{{- if include "baton.model.fetched" .model }}
- name: wait-for-{{ $id }}
  image: {{ include "baton.image" (dict "root" .root "service" "tokenizer") }}
  command: [sh, -c, "echo waiting for the download of {{ include "baton.model.fetched" .model }}: kubectl logs -l app.kubernetes.io/component=download; until [ -f /models/{{ $id }}/.downloaded ]; do sleep 2; done"]
  mounts: [{name: model-{{ $id }}, mountPath: /models/{{ $id }}, readOnly: true}]
{{- else if and $source.image (not $source.image.mount) }}
- name: copy-{{ $id }}
  image: {{ $source.image.reference }}
  command: [cp, -r, "{{ $source.image.path | trimSuffix "/" }}/.", /models/{{ $id }}]
  mounts: [{name: model-{{ $id }}, mountPath: /models/{{ $id }}}]
{{- else }}
[]
{{- end }}
{{- end }}

{{/* A pool of a model with the defaults filled in: (dict "root" $ "model" m "role" "prefill"). */}}
{{- define "baton.pool" -}}
{{- $given := get .model .role | default dict }}
{{- $defaults := deepCopy .root.Values.poolDefaults }}
{{- $pool := mergeOverwrite $defaults (deepCopy $given) }}
{{- if $given.resources }}{{ $_ := set $pool "resources" $given.resources }}{{ end }}
{{- if not $pool.storage }}{{ $_ := set $pool "storage" "default" }}{{ end }}
{{- if not $pool.startupSeconds }}
{{- $_ := set $pool "startupSeconds" (add (ternary 600 120 (eq ($pool.settings.engine | default "baton") "vllm")) (mulf 10 .model.sizeGiB | ceil)) }}
{{- end }}
{{- include "baton.pool.devices" (dict "pool" $pool "model" .model) }}
{{- toYaml $pool }}
{{- end }}
