"""docs/api.md names every field of every endpoint, and the limits that it states are the code's."""

from pathlib import Path

import msgspec
import pytest

from services.gateway.anthropic.messages import MessageFields
from services.gateway.openai import limits
from services.gateway.openai.chat import ChatFields
from services.gateway.openai.completions import CompletionFields
from services.gateway.openai.responses import ResponseFields
from services.gateway.openai.vllm.tokenize import DetokenizeFields, TokenizeFields
from services.gateway.request import submission
from services.gateway.vectors.embeddings import EmbeddingFields
from services.gateway.vectors.rerank import RerankFields, ScoreFields

STRUCTS = [
    ChatFields,
    CompletionFields,
    ResponseFields,
    TokenizeFields,
    DetokenizeFields,
    MessageFields,
    EmbeddingFields,
    RerankFields,
    ScoreFields,
]
PAGE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_is_on_the_page(struct: type[msgspec.Struct]) -> None:
    missing = [name for name in struct.__struct_fields__ if f"`{name}" not in PAGE]
    assert not missing


def test_the_stated_limits_are_the_codes() -> None:
    assert f"1 to {limits.MAX_CHOICES} choices" in PAGE
    assert f"up to {limits.MAX_STOP_STRINGS} strings" in PAGE
    assert f"true; 0 to {limits.MAX_LOGPROBS} of the likeliest" in PAGE
    assert f"{submission.MAX_PROMPT_LOGPROBS:,}" in PAGE
