"""Makes a causal model give the states behind its last layer where it would give logits.

Its output layer becomes the identity, so that every way of computing the model serves for vectors
too, the compiled step among them: the product with the identity changes no value.
"""

from typing import Any

import torch
from torch import nn

from baton.model.load.load_error import LoadError
from baton.model.load.source import ModelSource
from baton.model.transformers_api import PreTrainedModel
from baton.wire.pooling import Pooling, UnservedPooling, read_pooling

_TOKENS = 8


def pooling_of(source: ModelSource) -> Pooling | None:
    """The pooling of the model; None for one that generates text. Raises LoadError."""
    try:
        return read_pooling(source.folder)
    except UnservedPooling as error:
        raise LoadError(f"model {source.name}: {error}") from None


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
    tokens = torch.arange(_TOKENS)[None] % embeddings.num_embeddings
    states = base(input_ids=tokens, use_cache=False).last_hidden_state
    given = model(input_ids=tokens, use_cache=False).logits
    model.set_attn_implementation(chosen)
    if states.shape != given.shape or not torch.equal(states, given):
        message = "changes its logits behind the output layer; its vectors are not served"
        raise LoadError(f"model {name}: {type(model).__name__} {message}")
