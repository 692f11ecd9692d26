"""An image has every package of ours that its programs import."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
LIGHT = ("gateway", "quota", "tokenizer", "router", "edge", "envoy", "page")


def copied(dockerfile: str) -> set[str]:
    """The folders `baton/...` that the file copies into the image."""
    return set(re.findall(r"\bbaton/[a-z_]+\b(?!\.py|/)", (DOCKER / dockerfile).read_text()))


def imported(folder: Path) -> Iterator[str]:
    """The folders of the packages `baton.*` that a folder's modules import at their top."""
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "baton":
                names = [f"baton.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                if name.startswith("baton."):
                    yield "/".join(name.split(".")[:2])


def needed(roots: set[str]) -> set[str]:
    """All packages of the library that these folders import, directly or through others."""
    found: set[str] = set()
    waiting = set(roots)
    while waiting:
        folder = waiting.pop()
        found.add(folder)
        waiting |= set(imported(ROOT / folder)) - found
    return {folder for folder in found if folder.startswith("baton/")}


def test_the_workers_image_has_all_that_workers_import() -> None:
    roots = {"services/prefill_worker", "services/decode_worker", "baton/worker"}
    assert needed(roots) <= copied("worker.Dockerfile")


def test_the_image_with_vllm_has_all_that_its_fronts_and_its_core_import() -> None:
    roots = {"services/prefill_worker", "services/decode_worker", "baton/worker", "baton/engines"}
    assert needed(roots) <= copied("worker-vllm.Dockerfile")


@pytest.mark.parametrize("service", LIGHT)
def test_a_light_image_has_all_that_its_service_imports(service: str) -> None:
    assert needed({f"services/{service}"}) <= copied("service.Dockerfile")
