#!/usr/bin/env bash
# Builds the images and runs docker-compose.yml for real with podman, on a machine without a registry
# and without systemd: tools/try_images.sh [WORK_FOLDER]. It needs what tools/offline_images.sh needs.
#
# The collector, Jaeger, Prometheus and Grafana are left out: their images come from registries.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-.baton/images}
mkdir -p "$work/compose"
work=$(cd "$work" && pwd)
python=${PYTHON:-.venv/bin/python}
services=(quota tokenizer router prefill-1 decode-1 decode-2 gateway edge envoy)
ours=(keys redis "${services[@]}")
port=${BATON_PORT:-18080}
tools/offline_images.sh "$work"
export CONTAINERS_CONF=$work/containers.conf

step() { echo "== $* ($SECONDS s)"; }

step "compose"
[ -d "$work/compose/bin" ] || "$python" -m pip install -q --target "$work/compose" podman-compose
compose() {
    BATON_PORT=$port BATON_REDIS_IMAGE=localhost/baton-try-redis:dev \
        PYTHONPATH="$work/compose" "$python" -m podman_compose -p baton-try "$@"
}
down() { compose down -v >"$work/down.log" 2>&1 || cat "$work/down.log"; }
trap down EXIT
started=$SECONDS
compose up -d --no-build "${ours[@]}" >"$work/up.log" 2>&1 || { cat "$work/up.log"; exit 1; }
healthy() {
    for name in "${services[@]}"; do
        podman exec "baton-try_${name}_1" python /opt/baton/health.py >/dev/null 2>&1 || return 1
    done
    curl -fsS -o /dev/null "http://127.0.0.1:$port/readyz" 2>/dev/null
}
until healthy; do
    if [ $((SECONDS - started)) -gt 180 ]; then
        podman ps -a
        for name in "${ours[@]}"; do
            echo "-- $name" && podman logs --tail 5 "baton-try_${name}_1" 2>&1
        done
        exit 1
    fi
    sleep 1
done
echo "ready after $((SECONDS - started)) s"
for name in "${services[@]}"; do
    echo "$name: $(podman exec "baton-try_${name}_1" python /opt/baton/health.py)"
done

step "a streamed completion through Envoy"
podman exec baton-try_quota_1 cat /etc/baton/auth/api-key >"$work/api-key"
BASE_URL=http://127.0.0.1:$port/v1 MODEL=baton-demo KEY_FILE=$work/api-key \
    "$python" deploy/helm/baton/files/stream_completion.py
rm -f "$work/api-key"
step "done"
