"""Makes a causal model give the states behind its last layer where it would give logits.

Its output layer becomes the identity, so that every way of computing the model serves for vectors
too, the compiled step among them: the product with the identity changes no value.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import nn

from baton.model.load.load_error import LoadError
from baton.model.load.source import ModelSource
from baton.model.transformers_api import PreTrainedModel
from baton.wire.pooling import CLASSIFIER_TOKENS, Pooling, UnservedPooling, read_pooling

_TOKENS = 8
_SCORE_WEIGHT = "score.weight"


class Pooler(NamedTuple):
    """The way from states to a vector. `score`: the float32 weights of a reranker, `[hidden]`."""

    pooling: Pooling
    score: torch.Tensor | None


def pooling_of(source: ModelSource) -> Pooling | None:
    """The pooling of the model; None for one that generates text. Raises LoadError."""
    try:
        return read_pooling(source.folder)
    except UnservedPooling as error:
        raise LoadError(f"model {source.name}: {error}") from None


def make_pooler(source: ModelSource, model: PreTrainedModel, pooling: Pooling) -> Pooler:
    """The pooler of a model, which gives states from now on. Raises LoadError."""
    score = _score_weights(source, model) if pooling.is_score else None
    give_states(source.name, model)
    return Pooler(pooling, score)


@torch.inference_mode()
def give_states(name: str, model: PreTrainedModel) -> None:
    """Put the identity in the place of the output layer. Raises LoadError when the model does more
    with its logits than that layer."""
    embeddings: Any = model.get_input_embeddings()
    width = model.config.get_text_config().hidden_size
    weight = torch.eye(width, dtype=embeddings.weight.dtype, device=embeddings.weight.device)
    layer = nn.Linear(width, width, bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    model.set_output_embeddings(layer)  # type: ignore[no-untyped-call]
    base: Any = model.base_model
    chosen = model.config._attn_implementation
    model.set_attn_implementation("eager")
    tokens = torch.arange(_TOKENS, device=weight.device)[None] % embeddings.num_embeddings
    states = base(input_ids=tokens, use_cache=False).last_hidden_state
    given = model(input_ids=tokens, use_cache=False).logits
    model.set_attn_implementation(chosen)
    if states.shape != given.shape or not torch.equal(states, given):
        message = "changes its logits behind the output layer; its vectors are not served"
        raise LoadError(f"model {name}: {type(model).__name__} {message}")


def _score_weights(source: ModelSource, model: PreTrainedModel) -> torch.Tensor:
    """A layer of its own, or the output layer's row for yes less that for no."""
    tokens = json.loads((source.folder / "config.json").read_text()).get(CLASSIFIER_TOKENS)
    weights = _own_layer(source.folder) if tokens is None else None
    if tokens is not None:
        no, yes = _token_ids(source, tokens)
        output: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        weights = output.weight[[yes]].float() - output.weight[[no]].float()
    hidden = model.config.get_text_config().hidden_size
    if weights is None or weights.shape != (1, hidden):
        raise LoadError(f"model {source.name}: has no {_SCORE_WEIGHT} of 1 x {hidden}")
    return weights[0].clone()


def _own_layer(folder: Path) -> torch.Tensor | None:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if _SCORE_WEIGHT in file.keys():  # noqa: SIM118  (not a mapping)
                weights: torch.Tensor = file.get_tensor(_SCORE_WEIGHT).float()
                return weights
    return None


def _token_ids(source: ModelSource, tokens: Any) -> list[int]:
    """The ids of the tokens for no and yes. Raises LoadError."""
    path = source.folder / "tokenizer.json"
    known = Tokenizer.from_file(str(path)) if path.is_file() else None
    found = [] if known is None else [known.token_to_id(str(token)) for token in tokens]
    ids = [token_id for token_id in found if token_id is not None]
    if len(ids) != 2 or len(found) != 2:
        raise LoadError(f"model {source.name}: {CLASSIFIER_TOKENS} does not name two tokens")
    return ids
