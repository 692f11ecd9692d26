#!/usr/bin/env bash
# Baton on a Kubernetes of this machine, in one command: tools/kind.sh [OPTIONS OF helm install...]
# Makes the kind cluster `baton` if there is none, builds the images and loads them (or, with REGISTRY=host/team, lets
# the cluster pull them), installs the release `baton`, runs `helm test` and says what to type next.
#
#   CLUSTER=none  LOAD="minikube image load"   another cluster: that of kubectl's context; LOAD brings an image into it
#   REGISTRY=ghcr.io/baton-serving             published images: nothing is built
#   VALUES=deploy/helm/baton/ci/trial-values.yaml   that file by default: for two cores
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=${CLUSTER:-baton}
registry=${REGISTRY:-localhost}
values=${VALUES:-deploy/helm/baton/ci/trial-values.yaml}
tag=${TAG:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
load=${LOAD:-kind load docker-image --name $cluster}
needed=(kubectl helm)
[ "$cluster" = none ] || needed+=(kind)
for program in "${needed[@]}"; do
    command -v "$program" >/dev/null || { echo "$program is not installed: https://kubernetes.io/docs/tasks/tools" >&2; exit 1; }
done

if [ "$cluster" != none ]; then
    kind get clusters 2>/dev/null | grep -qx "$cluster" || kind create cluster --name "$cluster"
    kubectl config use-context "kind-$cluster" >/dev/null
fi
if [ "$registry" = localhost ]; then
    names=(gateway quota tokenizer router edge envoy worker)
    TAG=$tag tools/images.sh "${names[@]}"
    for name in "${names[@]}"; do
        $load "localhost/baton-$name:$tag"
    done
fi
helm upgrade --install baton deploy/helm/baton --namespace baton --create-namespace -f "$values" \
    --set image.registry="$registry" --set-string image.tag="$tag" --wait --timeout 10m "$@"
helm test baton --namespace baton --logs
cat <<'NEXT'

Ask it:
   KEY=$(kubectl -n baton get secret baton-auth -o jsonpath='{.data.api-key}' | base64 -d)
   kubectl -n baton port-forward svc/baton-envoy 8080:80 &
   curl http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \
     -d '{"model": "baton-demo", "messages": [{"role": "user", "content": "Hello"}]}'
Take it away: helm -n baton uninstall baton; all of it: kind delete cluster --name baton
NEXT
