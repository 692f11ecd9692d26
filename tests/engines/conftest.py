"""The engines that the conformance suite runs on: Baton's own, and vLLM's where there is one.

`BATON_VLLM_PYTHON` names the interpreter of an environment with vLLM; `make test-engines` sets it.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import baton.demo_model
from baton.engine.process.process_client import EngineSpec
from tests.engines.driven_core import DrivenCore
from tools.engine_table import ENGINE

MODEL = Path(baton.demo_model.__file__).parent
VLLM_PYTHON = os.environ.get("BATON_VLLM_PYTHON", "")
# vLLM's build for GPUs is under test, as `python -m bench gpu --engine vllm` does.
IS_UNPROVEN = os.environ.get("BATON_WORKER_UNPROVEN") == "on"
FIRST_GPU, SECOND_GPU = Path("/dev/nvidia0"), Path("/dev/nvidia1")
# A stack whose workers import vLLM, on a busy machine.
VLLM_START_TIMEOUT_S = 800
ENGINES = {"baton": EngineSpec("baton.worker.core_main")}
if VLLM_PYTHON:
    ENGINES["vllm"] = EngineSpec("baton.engines.vllm.core_main", VLLM_PYTHON)
else:
    collect_ignore = [
        "test_vllm_stack.py",
        "test_vllm_stats.py",
        "test_mixed_engines.py",
        "test_tensor_parallel.py",
        "test_expert_parallel.py",
        "test_first_steps.py",
        "test_adapters.py",
        "test_ranks_stack.py",
        "connectors",
        "devices",
    ]
OPTIONS = {
    "--model": str(MODEL),
    "--dtype": os.environ.get("BATON_TEST_DTYPE", "float32"),
    "--threads": "1",
    "--kv-memory": "20MiB",
    "--block-size": "32",
    "--max-batch": "8",
    "--max-model-len": "640",
}
NUM_ADAPTER_SLOTS = 2
OWN_OPTIONS = {
    "vllm": {
        "--adapter-slots": str(NUM_ADAPTER_SLOTS),
        "--adapter-rank": "8",
        "--unproven": "on" if IS_UNPROVEN else "off",
    }
}


# By name: an engine, and how many ranks of it compute.
CORES = {engine: (engine, 1) for engine in ENGINES}
if VLLM_PYTHON and (not IS_UNPROVEN or SECOND_GPU.exists()):
    CORES["vllm-on-2-ranks"] = ("vllm", 2)


def core_words(engine: str, num_ranks: int = 1, speculation_tokens: int = 0) -> list[str]:
    """The options of such a core."""
    options = OPTIONS | OWN_OPTIONS.get(engine, {})
    options |= {"--speculation-tokens": str(speculation_tokens)}
    words = [word for option in options.items() for word in option]
    return words + (["--tensor-parallel", str(num_ranks)] if num_ranks > 1 else [])


def start_core(engine: str, num_ranks: int = 1, speculation_tokens: int = 0) -> DrivenCore:
    return DrivenCore(ENGINES[engine], core_words(engine, num_ranks, speculation_tokens))


@pytest.fixture(scope="session", params=CORES)
def running(request: pytest.FixtureRequest) -> Iterator[DrivenCore]:
    """One core of each kind for all tests."""
    core = start_core(*CORES[request.param])
    yield core
    core.close()


@pytest.fixture
def core(
    running: DrivenCore, record_property: Callable[[str, object], None]
) -> Iterator[DrivenCore]:
    """The core, which has nothing left to do and all its blocks when a test is over."""
    record_property(ENGINE, running.info.engine)
    running.settle()
    num_free = running.num_free_blocks
    yield running
    running.settle()
    assert running.num_free_blocks == num_free
    assert running.load.num_rows_free == running.info.num_rows
    assert running.load.num_running == running.load.num_waiting == running.load.num_not_started == 0
