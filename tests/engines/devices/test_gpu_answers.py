"""vLLM on a GPU answers what Baton's own engine answers on the host's CPU, in float32."""

from collections.abc import Iterator

import pytest

from tests import needs
from tests.engines.conftest import ENGINES, FIRST_GPU, core_words
from tests.engines.driven_core import DrivenCore

PROMPTS = [list(range(start, start + size)) for start, size in ((700, 145), (20, 3), (300, 64))]
GREEDY = {"max_tokens": 40, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 0.9, "seed": 11, "top_p": 0.95, "presence_penalty": 0.6}

pytestmark = pytest.mark.skipif(not FIRST_GPU.exists(), reason=needs.GPU)


@pytest.fixture(scope="module")
def cores() -> Iterator[tuple[DrivenCore, DrivenCore]]:
    """On the CPU, and on the GPU."""
    words = {engine: [*core_words(engine), "--dtype", "float32"] for engine in ENGINES}
    on_cpu = DrivenCore(ENGINES["baton"], [*words["baton"], "--device", "cpu"])
    on_gpu = DrivenCore(ENGINES["vllm"], [*words["vllm"], "--device", "cuda"])
    yield on_cpu, on_gpu
    on_cpu.close()
    on_gpu.close()


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=[str(len(prompt)) for prompt in PROMPTS])
def test_a_gpu_answers_what_the_cpu_answers(
    cores: tuple[DrivenCore, DrivenCore], prompt: list[int], options: dict[str, float]
) -> None:
    on_cpu, on_gpu = (core.answer(prompt, **options) for core in cores)
    assert on_gpu == on_cpu
