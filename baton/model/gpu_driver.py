"""NVIDIA's driver on this machine, and why torch cannot use it. It asks the kernel, not the
driver's library, which a container may lack.

The oldest drivers are those of "Minor Version Compatibility" in the CUDA Compatibility guide,
https://docs.nvidia.com/deploy/cuda-compatibility/.
"""

import re
from pathlib import Path

_VERSION_FILE = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"Kernel Module.*?\s(\d+)\.[\d.]+\s")
# CUDA's major version -> the oldest driver.
_OLDEST = {11: 450, 12: 525, 13: 580}


def why_no_gpu(cuda_version: str | None, version_file: Path = _VERSION_FILE) -> str:
    """The likely reason why torch finds no GPU, and what to do. `cuda_version` is torch's; None =
    it was built without CUDA."""
    if cuda_version is None:
        return "this torch was built without CUDA: take the image worker-cuda, or torch for CUDA"
    driver = _driver(version_file)
    if driver is None:
        return (
            "the machine shows no NVIDIA driver: in a container, ask for the GPU "
            "(accelerator of the pool, --gpus all, runtimeClassName nvidia)"
        )
    oldest = _OLDEST.get(int(cuda_version.partition(".")[0]), 0)
    if driver < oldest:
        return (
            f"driver {driver} is older than {oldest}, which CUDA {cuda_version} needs: take a "
            "newer driver, or the image worker-cuda with the tag of an older CUDA"
        )
    return (
        f"driver {driver} is new enough for CUDA {cuda_version}: look at CUDA_VISIBLE_DEVICES, "
        "nvidia-smi"
    )


def _driver(version_file: Path) -> int | None:
    """The major version of the kernel module; None = there is none."""
    try:
        found = _VERSION.search(version_file.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None
