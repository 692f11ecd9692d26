"""What is left of the Kubernetes client in the images still follows a Service."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.chart.rendered import ROOT
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key

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
    assert done.stdout.split() == ["10.0.0.1:7200"]
