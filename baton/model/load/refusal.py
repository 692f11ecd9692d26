"""Refuses models that cannot be served, in one line for a person, before anything is computed.

Paged attention over a flat batch is right only for a model whose one state is the keys and values
of each token; everything else is refused here by name, rather than answered wrongly.
"""

from pathlib import Path
from typing import Any

from torch import nn

from baton.model.load.load_error import LoadError
from baton.model.load.served_types import SERVED_LAYER_TYPES
from baton.model.transformers_api import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel


def check_folder(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a folder without safetensors, or one whose model exists as its own code only."""
    if not any(folder.glob("*.safetensors")):
        other = sorted(path.name for path in folder.glob("*") if path.suffix in {".bin", ".pt"})
        found = f", only {other[0]}, which can run code when it is read" if other else ""
        raise LoadError(f"model {folder.name}: no *.safetensors weights{found}")
    check_type(folder.name, config)


def check_type(name: str, config: dict[str, Any]) -> None:
    """Refuse a model that exists as its own code only."""
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        has_code = "auto_map" in config
        why = "needs its own Python code (auto_map)" if has_code else "is unknown to transformers"
        raise LoadError(f"model {name}: type {model_type!r} {why}")


def check_config(name: str, config: PretrainedConfig, model_class: type[PreTrainedModel]) -> None:
    """Refuse a model by its configuration and class, before weights are read."""
    model = f"model {name}: {model_class.__name__}"
    if getattr(model_class, "_is_stateful", False):
        raise LoadError(f"{model} keeps a recurrent state, which is not supported")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise LoadError(
            f"{model} does not support replaceable attention (ALiBi or its own kernels)"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise LoadError(f"{model} is an encoder-decoder, only causal models are supported")
    text = config.get_text_config(decoder=True)
    for layer_type in getattr(text, "layer_types", None) or ():
        if layer_type not in SERVED_LAYER_TYPES:
            raise LoadError(f"{model} has layers of type {layer_type!r}, which are not supported")
    if getattr(text, "alibi", False):
        raise LoadError(f"{model} uses ALiBi position biases, which are not supported")


def check_rope(name: str, model: nn.Module, max_model_len: int) -> None:
    """Refuse position embeddings whose frequencies depend on the longest sequence of a batch."""
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        for kind in rope_type.values() if isinstance(rope_type, dict) else (rope_type,):
            if not isinstance(kind, str):
                continue
            if "dynamic" in kind:
                raise LoadError(
                    f"model {name}: {type(module).__name__} uses {kind!r} position scaling, which "
                    "depends on the longest sequence of a batch"
                )
            if kind == "longrope" and max_model_len > (limit := _short_context(module)):
                raise LoadError(
                    f"model {name}: {type(module).__name__} changes all frequencies beyond {limit} "
                    f"tokens (longrope); serve it with --max-model-len {limit}"
                )


def _short_context(module: nn.Module) -> int:
    config: Any = module.config
    parameters: dict[str, Any] = config.rope_parameters
    groups = [parameters, *parameters.values()]
    name = "original_max_position_embeddings"
    return min(int(group[name]) for group in groups if isinstance(group, dict) and name in group)
