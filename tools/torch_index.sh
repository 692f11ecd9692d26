#!/usr/bin/env bash
# Prints the wheel index that torch is installed from; nothing = pip's own: tools/torch_index.sh PYTHON
# TORCH_INDEX_URL decides. Without it, a Linux machine without an NVIDIA driver takes PyTorch's index of
# CPU builds (200 MB; PyPI's build is for CUDA, 3 GB), unless pip has been given an index or it is away.
set -euo pipefail
cpu=https://download.pytorch.org/whl/cpu

if [ -n "${TORCH_INDEX_URL:-}" ]; then
    echo "$TORCH_INDEX_URL"
    exit
fi
if [ "$(uname -s)" != Linux ] || command -v nvidia-smi >/dev/null || [ -e /proc/driver/nvidia ]; then
    exit
fi
# Whole before it is looked at: pip fails when its reader is gone.
settings=$("$1" -m pip config list) || exit 0
case $settings in *index-url=*) exit ;; esac
if "$1" -c "import urllib.request; urllib.request.urlopen('$cpu/torch/', timeout=5)" 2>/dev/null; then
    echo "$cpu"
fi
