#!/usr/bin/env bash
# Builds the container images: tools/images.sh [gateway|quota|tokenizer|router|edge|envoy|worker|loadtest|worker-cuda|worker-cuda-cu129|worker-vllm|worker-vllm-cuda]...
# Without names: all up to loadtest; the others are several GB. `make images` is the same.
# worker-cuda needs driver 580 (CUDA 13), worker-cuda-cu129 driver 525 (CUDA 12): the same image with the tag TAG-cu129.
#
#   REGISTRY=ghcr.io/baton-serving  TAG=0.1.0  PUSH=1   the registry; nothing is pushed without PUSH
#   ENGINE=docker                                       or podman; by default the installed one
#   BASE=...@sha256:...                                 Python image (3.11 or later), pinned by digest
#   VLLM_BASE=...@sha256:...                            vLLM's image, for worker-vllm and worker-vllm-cuda
#   VLLM_NIXL=nixl-cu12                                 NIXL of worker-vllm-cuda, where VLLM_BASE has CUDA 12
#   TORCH_INDEX_URL, TORCH_CUDA_INDEX_URL               where the workers' torch comes from
#   BUILD_ARGS="--build-arg PIP_INDEX_URL=..."          more arguments of `build`
set -euo pipefail
cd "$(dirname "$0")/.."
registry=${REGISTRY:-localhost}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tag=${TAG:-$version}
vllm=$(sed -n 's/^VLLM_VERSION = "\(.*\)"$/\1/p' baton/engines/vllm/core_main.py)
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
            "--build-arg EXTRAS=worker,nixl-cu13,quantized --build-arg SYSTEM_PACKAGES=libgomp1,gcc,libc6-dev"
        ;;
    worker-cuda-cu129)
        echo "--build-arg TORCH_INDEX_URL=${TORCH_CUDA12_INDEX_URL:-https://download.pytorch.org/whl/cu129}" \
            "--build-arg EXTRAS=worker,nixl,quantized --build-arg SYSTEM_PACKAGES=libgomp1,gcc,libc6-dev"
        ;;
    # vLLM's own images, with Baton's workers beside it.
    worker-vllm) echo "--build-arg BASE=${VLLM_BASE:-docker.io/vllm/vllm-openai-cpu:v$vllm}" ;;
    worker-vllm-cuda)
        # That version of vLLM is made for CUDA 13 by default (VLLM_MAIN_CUDA_VERSION).
        echo "--build-arg BASE=${VLLM_BASE:-docker.io/vllm/vllm-openai:v$vllm}" \
            "--build-arg ENGINE_PYTHON=/usr/bin/python3 --build-arg NIXL=${VLLM_NIXL:-nixl-cu13}"
        ;;
    *)
        echo "unknown image: $1" >&2
        return 2
        ;;
    esac
}

build() {
    local name=$1 image=$registry/baton-$1:$tag file=service base=${BASE:-} given
    case $name in
    worker-vllm*) file=worker-vllm base= ;;
    worker*) file=worker ;;
    loadtest) file=loadtest ;;
    esac
    case $name in *-cu[0-9]*) image=$registry/baton-${name%-*}:$tag-${name##*-} ;; esac
    given=$(arguments "$name")
    # Arguments are words: none of them holds a space.
    # shellcheck disable=SC2086
    "$engine" build --tag "$image" --file "deploy/docker/$file.Dockerfile" $given \
        ${base:+--build-arg BASE=$base} \
        --build-arg VERSION="$version" \
        --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || true)" \
        --build-arg SOURCE="${SOURCE_URL:-}" \
        ${BUILD_ARGS:-} .
    tools/image_size.sh "$engine" "$name" "$image"
    if [ "${PUSH:-}" = 1 ]; then
        "$engine" push "$image"
    fi
}

[ $# -gt 0 ] || set -- gateway quota tokenizer router edge envoy worker loadtest
for name in "$@"; do
    build "$name"
done
