"""The import contracts are walls: each forbidden import breaks one, in a copy of the tree."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The command `lint-imports --no-cache` for each line that comes: to start takes most of its time.
LINTER = """
import sys
from importlinter.cli import lint_imports
for _ in sys.stdin:
    lint_imports(no_cache=True)
    print("END", flush=True)
"""

NO_TORCH_OR_NETWORK = "The engine knows neither torch nor the network"
NO_EVENT_LOOP = "The engine knows no event loop"
LIGHT = "Light services and the lower library never reach torch"
FRONTS = "Fronts and the handoff never import torch"
ROOMS = "Domain rooms of the gateway decide"
ROUTER_ROOMS = "Rooms of the router"
DOORS = "gRPC and Redis stand at the doors of a service"

# (module that gets a new import, the import, the contract that has to notice)
FORBIDDEN = [
    ("baton/engine/step/parallel_sampling.py", "asyncio", NO_EVENT_LOOP),
    ("baton/engine/sequence/sequence.py", "asyncio", NO_EVENT_LOOP),
    ("baton/engine/step/scheduler.py", "asyncio", NO_EVENT_LOOP),
    ("baton/engine/process/core.py", "asyncio", NO_EVENT_LOOP),
    ("baton/engine/protocol/page_checksum.py", "torch", NO_TORCH_OR_NETWORK),
    ("baton/engine/protocol/page_checksum.py", "grpc", NO_TORCH_OR_NETWORK),
    ("baton/engine/step/parallel_sampling.py", "torch", NO_TORCH_OR_NETWORK),
    ("baton/engine/step/command_handler.py", "grpc", NO_TORCH_OR_NETWORK),
    ("baton/engine/step/scheduler.py", "baton.runtime.logs", "Layers of the library"),
    ("baton/engine/protocol/messages.py", "baton.engine.step.engine", "Layers of the engine"),
    ("baton/engine/kv/block_pool.py", "baton.engine.step.engine", "Layers of the engine"),
    ("baton/wire/failures.py", "baton.runtime.logs", "Layers of the library"),
    ("baton/worker/program.py", "vllm", "One package knows vLLM"),
    ("baton/engines/vllm/scheduler.py", "asyncio", "Engines know no network and no event loop"),
    ("baton/model/device.py", "grpc", "The model knows no network and no event loop"),
    ("baton/model/device.py", "transformers", "One module of the model imports transformers"),
    ("services/gateway/workers/worker_link.py", "grpc", ROOMS),
    ("services/gateway/request/attempts.py", "grpc", ROOMS),
    ("services/gateway/tenants/leases.py", "redis", ROOMS),
    ("services/router/pick/selector.py", "grpc", DOORS),
    ("services/router/fleet/fleet.py", "services.router.pick.picker", ROUTER_ROOMS),
    ("services/router/queue/queue.py", "services.router.fleet.fleet", ROUTER_ROOMS),
    ("services/decode_worker/choice.py", "grpc", DOORS),
    ("services/prefill_worker/front.py", "grpc", DOORS),
    ("services/quota/ledger.py", "redis", DOORS),
    ("services/decode_worker/choice.py", "torch", FRONTS),
    ("services/gateway/app.py", "torch", LIGHT),
    ("services/router/pick/selector.py", "baton.engine.protocol.messages", LIGHT),
    (
        "services/router/pick/selector.py",
        "services.gateway.instruments",
        "Services are independent",
    ),
    ("baton/handoff/ticket.py", "grpc", "The handoff's protocol knows no transport"),
    ("services/gateway/app.py", "baton.testing.faults", "The test kit is imported by tests"),
    ("baton/worker/reports.py", "bench.report", "The library and the services know neither"),
    ("services/router/fleet/fleet.py", "services.router.router_core", "No package has a circle"),
]


class Linted:
    """A copy of the sources that the contracts are about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("baton", "services", "bench", "loadtest"):
            ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.safetensors")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self._linter = subprocess.Popen(
            [sys.executable, "-c", LINTER],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def broken_contracts(self) -> list[str]:
        """The names of the contracts that do not hold."""
        assert self._linter.stdin is not None
        assert self._linter.stdout is not None
        print("again", file=self._linter.stdin, flush=True)
        output = "".join(takewhile("END\n".__ne__, self._linter.stdout))
        summary = output.partition("dependencies.")[2].partition("\nContracts:")[0]
        one_line = " ".join(summary.replace("-", " ").split())
        verdicts = re.findall(r"(.+?) (KEPT|BROKEN)(?: \(.*?\))? ?", one_line)
        assert verdicts, output
        return [name for name, verdict in verdicts if verdict == "BROKEN"]

    def close(self) -> None:
        self._linter.communicate()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linted]:
    linted = Linted(tmp_path_factory.mktemp("tree"))
    yield linted
    linted.close()


@contextmanager
def added(line: str, file: Path) -> Iterator[None]:
    """A statement at the end of a file, for a while."""
    text = file.read_text()
    file.write_text(f"{text}\n{line}\n")
    try:
        yield
    finally:
        file.write_text(text)


def test_the_copy_itself_is_whole(tree: Linted) -> None:
    assert tree.broken_contracts() == []


@pytest.mark.parametrize(("module", "imported", "contract"), FORBIDDEN)
def test_a_forbidden_import_is_noticed(
    tree: Linted, module: str, imported: str, contract: str
) -> None:
    with added(f"import {imported}", tree.folder / module):
        assert any(contract in names for names in tree.broken_contracts())


def test_each_service_says_which_service_has_to_answer_its_calls() -> None:
    opened = {"open_channel": 0, "open_balanced_channel": 0}
    for file in (ROOT / "services").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            name = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
            if name in opened:
                opened[name] += 1
                assert len(node.args) == 2, f"{file}: {ast.unparse(node)} names no service"
    assert all(opened.values())
