#!/usr/bin/env bash
# Builds the container images: tools/images.sh [gateway|quota|tokenizer|router|edge|envoy|worker|worker-cuda|loadtest]...
# Without names: all but worker-cuda, which is several GB. `make images` is the same.
#
#   REGISTRY=ghcr.io/baton-serving  TAG=0.1.0  PUSH=1   the registry; nothing is pushed without PUSH
#   ENGINE=docker                                       or podman; by default the installed one
#   BASE=...@sha256:...                                 Python image (3.11 or later), pinned by digest
#   TORCH_INDEX_URL, TORCH_CUDA_INDEX_URL               where the workers' torch comes from
#   BUILD_ARGS="--build-arg PIP_INDEX_URL=..."          more arguments of `build`
set -euo pipefail
cd "$(dirname "$0")/.."
registry=${REGISTRY:-localhost}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tag=${TAG:-$version}
engine=${ENGINE:-$(command -v docker || command -v podman || true)}
if [ -z "$engine" ]; then
    echo "Neither docker nor podman is installed." >&2
    exit 1
fi

# Every image is baton-<name>.
arguments() {
    case $1 in
    gateway | quota | tokenizer | router | edge | envoy) echo "--build-arg SERVICE=$1" ;;
    loadtest) ;;
    worker) echo "--build-arg TORCH_INDEX_URL=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}" ;;
    worker-cuda)
        # Triton compiles its launchers where it runs.
        echo "--build-arg TORCH_INDEX_URL=${TORCH_CUDA_INDEX_URL:-https://download.pytorch.org/whl/cu130}" \
            "--build-arg EXTRAS=worker,nixl,quantized --build-arg SYSTEM_PACKAGES=libgomp1,gcc,libc6-dev"
        ;;
    *)
        echo "unknown image: $1" >&2
        return 2
        ;;
    esac
}

build() {
    local name=$1 image=$registry/baton-$1:$tag file=service given
    case $name in
    worker*) file=worker ;;
    loadtest) file=loadtest ;;
    esac
    given=$(arguments "$name")
    # Arguments are words: none of them holds a space.
    # shellcheck disable=SC2086
    "$engine" build --tag "$image" --file "deploy/docker/$file.Dockerfile" $given \
        ${BASE:+--build-arg BASE=$BASE} \
        --build-arg VERSION="$version" \
        --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || true)" \
        --build-arg SOURCE="${SOURCE_URL:-}" \
        ${BUILD_ARGS:-} .
    if [ "${PUSH:-}" = 1 ]; then
        "$engine" push "$image"
    fi
}

[ $# -gt 0 ] || set -- gateway quota tokenizer router edge envoy worker loadtest
for name in "$@"; do
    build "$name"
done
