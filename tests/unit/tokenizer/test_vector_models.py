"""What the tokenizer tells of embedding models and rerankers, and the prompt of a pair."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from baton.testing.tokenizer_folder import build_tokenizer_folder, train
from baton.wire.pooling import Pooling
from baton.wire.v1 import tokenizer_pb2
from services.gateway.text.detokenize import load_text_model
from services.tokenizer.model_folder import UnusableModel
from services.tokenizer.served_model import ServedModel
from tests.unit.tokenizer.test_encoder import encoder, ids_of, request

Load = Callable[[Path], Awaitable[ServedModel]]

# As vLLM writes it for Qwen3-Reranker.
PAIR = (
    "<|im_start|>user\n<Query>: {{ messages | selectattr('role', 'eq', 'query') | "
    "map(attribute='content') | first }}\n<Document>: {{ messages | "
    "selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>"
)
RERANKER = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}


def embedding_folder(folder: Path, mode: str) -> Path:
    build_tokenizer_folder(folder, config={"hidden_size": 8})
    (folder / "modules.json").write_text('[{"type": "a.Pooling", "path": "1_Pooling"}]')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    return folder


async def test_a_gateway_is_told_how_a_model_pools(load: Load, tmp_path: Path) -> None:
    model = await load(embedding_folder(tmp_path / "m", "mean"))
    assert load_text_model(model.artifact.data).pooling == Pooling("mean", 8)


async def test_a_model_of_text_pools_nothing(chatml: ServedModel) -> None:
    told = load_text_model(chatml.artifact.data)
    assert (told.pooling, told.has_pair_template) == (None, False)


async def test_a_pooling_that_is_not_served_is_refused_with_its_folder(
    load: Load, tmp_path: Path
) -> None:
    with pytest.raises(UnusableModel, match="m: pooling is cls"):
        await load(embedding_folder(tmp_path / "m", "cls"))


async def test_a_template_with_the_roles_of_a_pair_writes_its_prompt(
    load: Load, tmp_path: Path
) -> None:
    model = await load(build_tokenizer_folder(tmp_path / "m", template=PAIR, config=RERANKER))
    told = load_text_model(model.artifact.data)
    assert told.pooling == Pooling("last", 1, is_score=True)
    assert told.has_pair_template
    turns = [{"role": "query", "content": "so"}, {"role": "document", "content": "la ti"}]
    chat = tokenizer_pb2.ChatPrompt(
        messages_json=msgspec.json.encode(turns), add_generation_prompt=True
    )
    ids = ids_of(await encoder(model).encode(request(model, chat=chat)))
    text = train("byte_level").decode(ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\n<Query>: so\n<Document>: la ti<|im_end|>"
