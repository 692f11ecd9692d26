"""What images leave out is nothing that their services need."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml

from baton.engines.vllm.core_main import VLLM_VERSION
from tests.chart.rendered import ROOT
from tests.kit.compiled import compiled_for
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key

IMAGE_SCRIPT = ROOT / "tools/images.sh"
VLLM_DOCKERFILE = ROOT / "deploy/docker/worker-vllm.Dockerfile"
DOCKERFILE = ROOT / "deploy/docker/service.Dockerfile"
SLICE = {
    "metadata": {"name": "workers-1", "labels": {"kubernetes.io/service-name": "workers"}},
    "addressType": "IPv4",
    "ports": [{"name": "grpc", "port": 7200}],
    "endpoints": [{"addresses": ["10.0.0.1"]}],
}
PROGRAM = """
import asyncio, sys
from random import Random
sys.path.insert(0, sys.argv[1])
import kubernetes
assert kubernetes.__file__.startswith(sys.argv[1]), kubernetes.__file__
from baton.runtime.discovery.discover import discover

async def main():
    source = await discover(["kubernetes:workers:grpc"], Random(1))
    told = asyncio.get_running_loop().create_future()
    following = asyncio.ensure_future(source.follow(told.set_result))
    print(*[member.address for member in await asyncio.wait_for(told, 200)])
    following.cancel()

asyncio.run(main())
import grpc
grpc.insecure_channel("127.0.0.1:1").close()  # as the exporter of spans has one
print(*sys.modules)
"""


def linked(package: str, folder: Path) -> None:
    """The installed package as a folder of links."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent
    for path, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__"]
        own = folder / package / Path(path).relative_to(source)
        own.mkdir(parents=True)
        for name in names:
            (own / name).symlink_to(Path(path) / name)


def pruned(folder: Path) -> int:
    """Do to the folder what the image's build does; returns how many files are gone."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^RUN (find /opt/venv/lib .* -delete)$", text, re.MULTILINE)
    before = sum(len(names) for *_, names in os.walk(folder))
    script = command.replace("/opt/venv/lib", str(folder))
    subprocess.run(["sh", "-c", script], check=True, timeout=200)
    return before - sum(len(names) for *_, names in os.walk(folder))


def test_discovery_runs_with_the_files_that_images_keep(tmp_path: Path) -> None:
    site = tmp_path / "site"
    linked("kubernetes", site)
    assert pruned(site) > 500
    with KubeApi() as api:
        key = Key("discovery.k8s.io", "endpointslices", "default", "workers-1")
        api.store.create(key, SLICE)
        (tmp_path / "kubeconfig").write_text(api.kubeconfig())
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(site)],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    addresses, modules = done.stdout.splitlines()
    assert addresses == "10.0.0.1:7200"
    # Nor does a process compile what it imports when it first uses it.
    late = {"kubernetes.aio.client.models.v1_endpoint_slice_list", "grpc._channel"}
    assert late < set(modules.split()) <= compiled_for("services.router") | {"__main__"}


def test_images_with_vllm_are_made_from_the_version_that_workers_ask_for(tmp_path: Path) -> None:
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\necho "$@"\n')
    engine.chmod(0o755)
    done = subprocess.run(
        [IMAGE_SCRIPT, "worker-vllm", "worker-vllm-cuda"],
        env={"PATH": os.environ["PATH"], "ENGINE": str(engine), "BASE": "python@sha256:1"},
        capture_output=True,
        text=True,
        check=True,
    )
    for_cpus, for_gpus = (line for line in done.stdout.splitlines() if line.startswith("build"))
    assert f"BASE=docker.io/vllm/vllm-openai-cpu:v{VLLM_VERSION} " in for_cpus
    assert f"BASE=docker.io/vllm/vllm-openai:v{VLLM_VERSION} " in for_gpus
    # The base image's version is made for CUDA 13 (VLLM_MAIN_CUDA_VERSION of 0.32).
    assert "NIXL=nixl-cu13 " in for_gpus
    assert "NIXL" not in for_cpus
    assert "python@sha256" not in done.stdout
    assert f"BASE=docker.io/vllm/vllm-openai-cpu:v{VLLM_VERSION}\n" in VLLM_DOCKERFILE.read_text()


def test_the_fronts_of_the_image_with_vllm_get_nixl_without_the_torch_that_it_names() -> None:
    text = VLLM_DOCKERFILE.read_text().replace("\\\n", " ")
    parts = re.split("&&|;", text)
    (installed,) = (part for part in parts if "pip --python" in part and '"${NIXL}"' in part)
    assert "--python /opt/baton/venv/bin/python install" in installed
    assert "--no-deps" in installed
    assert "--constraint constraints.txt" in installed


def test_a_release_has_each_image_that_a_worker_starts_in() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    names = release["jobs"]["build"]["strategy"]["matrix"]["name"]
    known = re.findall(r"\[(gateway\|.*?)\]", IMAGE_SCRIPT.read_text())[0].split("|")
    # vLLM's engine never ran on a GPU.
    assert set(known) - set(names) == {"worker-vllm-cuda"}
