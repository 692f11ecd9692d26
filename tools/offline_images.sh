#!/usr/bin/env bash
# Builds the container images with podman on a machine that reaches no registry of images, only one
# of packages: tools/offline_images.sh [WORK_FOLDER]. Opt-in: needs root, ten minutes, 8 GB, and
#
#   apt-get install --no-install-recommends podman buildah runc netavark aardvark-dns iptables mmdebstrap
#
# The base image is Debian's Python, made by mmdebstrap. Redis is Debian's, which speaks TLS, under the
# names that the chart asks for, too. The work folder keeps the base, the wheels and podman's
# settings for the next time; nothing under /etc is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-.baton/images}
mkdir -p "$work/wheels" "$work/redis" "$work/src"
work=$(cd "$work" && pwd)
python=${PYTHON:-.venv/bin/python}
base=localhost/baton-base:bookworm

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
extras=gateway,quota,tokenizer,router,edge,envoy,kubernetes,loadtest,worker
"$python" -m pip wheel -q -w "$work/wheels" --find-links "$work/wheels" -c constraints.txt \
    "$(grep '^torch==' constraints.txt)" "setuptools>=80" "async-timeout>=4.0.3" \
    "$work/src[$extras]"
rm -f "$work"/wheels/baton*.whl

step "images"
# --format=docker: health checks are no part of the OCI format.
given="--network=none --format=docker --volume $work/wheels:/wheels:ro"
given="$given --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels"
# The base has a compiler, and torch is the index's own.
SIZES=print ENGINE=podman BASE=$base BUILD_ARGS=$given tools/images.sh gateway quota tokenizer router edge envoy loadtest worker
if ! podman image exists localhost/baton-redis-base:bookworm; then
    [ -f "$work/redis.tar" ] || mmdebstrap --variant=minbase --include=redis-server bookworm "$work/redis.tar"
    podman import -q "$work/redis.tar" localhost/baton-redis-base:bookworm
fi
cat >"$work/redis/Dockerfile" <<'REDIS'
FROM localhost/baton-redis-base:bookworm
RUN ln -s redis-server /usr/bin/valkey-server && ln -s redis-cli /usr/bin/valkey-cli && \
    install -d -o 10001 -g 10001 /data
USER 10001:10001
REDIS
redis=$(sed -n 's/^  image: \(.*valkey.*\)/\1/p' deploy/helm/baton/values.yaml)
# shellcheck disable=SC2086
podman build -q $given -t localhost/baton-try-redis:dev -t "$redis" "$work/redis"
podman images --format '{{.Size}} {{.Repository}}:{{.Tag}}' | grep localhost/baton-
