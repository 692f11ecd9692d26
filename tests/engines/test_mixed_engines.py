"""Two models behind one gateway: Baton's engine computes one, vLLM's the other."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from baton.demo_model import demo_model_path
from tests.e2e.conftest import Stack
from tests.engines.conftest import VLLM_START_TIMEOUT_S
from tests.engines.mixed_up import TWIN

NUM_TOKENS = 40
SEEDED = {"temperature": 0.8, "seed": 5}


class MixedStack(Stack):
    """`baton up` with both engines."""

    program = "tests.engines.mixed_up"
    start_timeout_s = VLLM_START_TIMEOUT_S


def make_twin(folder: Path) -> Path:
    """The demo model under another name and with another fingerprint: it answers alike."""
    twin = Path(shutil.copytree(demo_model_path(), folder / TWIN))
    path = twin / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "transformers_version": "twin"}))
    return twin


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("mixed")
    models = ("--model", "baton-demo", "--model", str(make_twin(folder)))
    sizes = ("--prefill", "1", "--decode", "1", "--kv-memory", "16MiB", "--dtype", "float32")
    stack = MixedStack(folder / "home", *models, *sizes)
    stack.start()
    yield stack
    assert stack.interrupt() == 0


def answer(stack: Stack, model: str, **options: float) -> str:
    completion = stack.client().chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a long story about two engines."}],
        max_tokens=NUM_TOKENS,
        extra_body={"ignore_eos": True},
        **{"temperature": 0.0, **options},
    )
    return completion.choices[0].message.content or ""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("options", [{}, SEEDED], ids=["greedy", "seeded"])
def test_both_engines_answer_behind_one_gateway(stack: Stack, options: dict[str, float]) -> None:
    told = {model: answer(stack, model, **options) for model in ("baton-demo", TWIN)}
    assert told["baton-demo"]
    assert told[TWIN] == told["baton-demo"]
    for role in ("prefill", "decode"):
        for worker in (f"{role}-1-baton-demo", f"{role}-1-{TWIN}"):
            assert stack.metric(worker, "baton_handoff_transfers_total") > 0


def test_each_model_is_served_as_far_as_its_engine_goes(stack: Stack) -> None:
    ask = stack.client().chat.completions.create
    beams = {"use_beam_search": True}
    messages = [{"role": "user", "content": "hi"}]
    options = {"messages": messages, "n": 2, "max_tokens": 4, "extra_body": beams}
    assert len(ask(model="baton-demo", **options).choices) == 2
    with pytest.raises(openai.BadRequestError, match=r"not served by .*vllm") as refused:
        ask(model=TWIN, **options)
    assert refused.value.code == "unsupported_parameter"
    assert {model.id for model in stack.client().models.list()} >= {"baton-demo", TWIN}
