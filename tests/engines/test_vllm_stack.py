"""The whole stack with vLLM's engine in each worker: what a client sees of it."""

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from baton.localstack.plan import WORKER_PREFIXES
from baton.testing.tiny_adapters import write_adapter
from tests.e2e.conftest import Stack, wait_until
from tests.engines.conftest import MODEL, VLLM_START_TIMEOUT_S

SEEDED = {"temperature": 0.8, "seed": 5, "presence_penalty": 0.5}
NUM_TOKENS = 60
ADAPTERS = ("poems", "code")
MODELS = ("baton-demo", *ADAPTERS)


class VllmStack(Stack):
    """Workers that import vLLM take long to start."""

    start_timeout_s = VLLM_START_TIMEOUT_S


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = ["--engine", "vllm", "--dtype", "float32", "--kv-memory", "32MiB", "--max-batch", "8"]
    for number, name in enumerate(ADAPTERS, 1):
        folder = write_adapter(tmp_path_factory.mktemp(name), MODEL, seed=number)
        options += ["--lora", f"{name}={folder}"]
    stack = VllmStack(tmp_path_factory.mktemp("vllm") / "home", *options)
    stack.start()
    yield stack
    assert stack.interrupt() == 0


def cores_of(stack: Stack) -> Iterator[psutil.Process]:
    """The cores of the decode workers."""
    for name, pid in stack.pids().items():
        if name.startswith("decode-"):
            (core,) = psutil.Process(pid).children()
            yield core


def are_ready(stack: Stack) -> bool:
    """All workers serve: one that was killed takes long to come back."""
    state = stack.home.read_state()
    assert state is not None
    rows = [row for name, row in state.services.items() if name.startswith(WORKER_PREFIXES)]
    try:
        for row in rows:
            url = str(row["metrics_url"]).replace("/metrics", "/readyz")
            urllib.request.urlopen(url, timeout=10).close()
    except OSError:
        return False
    return True


def streamed(
    stack: Stack,
    on_half: Callable[[], None] = lambda: None,
    model: str = MODELS[0],
    **options: float,
) -> str:
    """A whole answer; `on_half` is called in the middle of it."""
    stream = stack.client().chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a long story."}],
        max_tokens=NUM_TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
        **{"temperature": 0.0, **options},
    )
    pieces: list[str] = []
    for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        if len(pieces) == NUM_TOKENS // 2:
            on_half()
    return "".join(pieces)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("model", MODELS[:2])
@pytest.mark.parametrize("options", [{}, SEEDED], ids=["greedy", "seeded"])
def test_an_answer_goes_on_identically_when_its_core_is_killed(
    stack: Stack, model: str, options: dict[str, float]
) -> None:
    wait_until(lambda: are_ready(stack), VllmStack.start_timeout_s)
    whole = streamed(stack, model=model, **options)
    busy_s = {core: sum(core.cpu_times()[:2]) for core in cores_of(stack)}

    def kill_the_one_that_works() -> None:
        spent_s = {core: sum(core.cpu_times()[:2]) - busy_s[core] for core in busy_s}
        os.kill(max(spent_s, key=lambda core: spent_s[core]).pid, signal.SIGKILL)

    assert streamed(stack, kill_the_one_that_works, model, **options) == whole


@pytest.mark.timeout(1500)
def test_adapters_are_models_that_share_workers_and_no_text(stack: Stack) -> None:
    wait_until(lambda: are_ready(stack), VllmStack.start_timeout_s)
    cards = {card.id: card for card in stack.client().models.list()}
    assert {name: cards[name].model_dump().get("parent") for name in MODELS} == {
        "baton-demo": None,
        "poems": "baton-demo",
        "code": "baton-demo",
    }
    alone = [streamed(stack, model=name) for name in MODELS]
    assert len(set(alone)) == len(MODELS)
    with ThreadPoolExecutor(2 * len(MODELS)) as clients:
        together = clients.map(lambda name: streamed(stack, model=name), MODELS * 2)
        assert list(together) == alone * 2


def test_an_adapter_comes_and_goes_while_the_stack_runs(stack: Stack, tmp_path: Path) -> None:
    def is_served() -> bool:
        return "late" in {card.id for card in stack.client().models.list()}

    link = stack.home.adapters / "late"
    link.symlink_to(write_adapter(tmp_path / "late", MODEL, seed=9))
    wait_until(is_served, 60)
    assert streamed(stack, model="late") != streamed(stack)
    link.unlink()
    wait_until(lambda: not is_served(), 60)


def test_what_vllm_does_not_serve_is_refused_by_name(stack: Stack) -> None:
    pattern = r"use_beam_search: not served by .*vllm"
    with pytest.raises(openai.BadRequestError, match=pattern) as refused:
        stack.client().chat.completions.create(
            model="baton-demo",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=2,
            extra_body={"use_beam_search": True},
        )
    assert refused.value.code == "unsupported_parameter"
    assert refused.value.param == "use_beam_search"
