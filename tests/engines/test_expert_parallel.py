"""A mixture of experts whose ranks have some of the experts each."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from baton.engine.process.process_client import CoreNotStarted, ProcessEngineClient
from tests.engines.conftest import ENGINES, OPTIONS
from tests.engines.driven_core import DrivenCore

# Two ranks cannot share an expert of this size: an answer of theirs shows that each has its own.
EXPERT_SIZE = 33
PROMPTS = [list(range(10, 10 + length)) for length in (5, 45, 99)]
GREEDY = {"max_tokens": 20, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 0.9, "seed": 11}
DIVIDED = {"--tensor-parallel": "2", "--expert-parallel": "on"}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of four experts, of which each token takes two."""
    config = Qwen3MoeConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=EXPERT_SIZE,
        max_position_embeddings=640,
        initializer_range=0.3,
    )
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("mixture")
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def words(model: Path, more: dict[str, str]) -> list[str]:
    options = OPTIONS | {"--model": str(model)} | more
    return [word for option in options.items() for word in option]


def test_ranks_with_experts_of_their_own_answer_as_one_rank_does(mixture: Path) -> None:
    answers = []
    for more in ({}, DIVIDED):
        core = DrivenCore(ENGINES["vllm"], words(mixture, more))
        answers.append([core.answer(p, **how) for p in PROMPTS for how in (GREEDY, SAMPLED)])
        core.close()
    assert answers[0] == answers[1]


async def test_a_model_without_experts_is_refused_by_name() -> None:
    options = words(Path(OPTIONS["--model"]), DIVIDED)
    with pytest.raises(CoreNotStarted, match="Number of experts in the model must be greater"):
        await ProcessEngineClient.start(ENGINES["vllm"], options)
