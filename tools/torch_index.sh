#!/usr/bin/env bash
# Prints the wheel index that torch is installed from; nothing = pip's own: tools/torch_index.sh PYTHON
# TORCH_INDEX_URL decides. Without it, a Linux machine without an NVIDIA driver takes PyTorch's index of
# CPU builds (200 MB; PyPI's build is for CUDA, 3 GB), unless pip has been given an index or it is away.
set -euo pipefail
cpu=https://download.pytorch.org/whl/cpu

if [ -n "${TORCH_INDEX_URL:-}" ]; then
    echo "$TORCH_INDEX_URL"
elif [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null && ! [ -e /proc/driver/nvidia ] &&
    ! "$1" -m pip config list | grep -q 'index-url=' &&
    "$1" -c "import urllib.request; urllib.request.urlopen('$cpu/torch/', timeout=5)" 2>/dev/null; then
    echo "$cpu"
fi
