"""Quantised checkpoints: their weights are made whole at load, or they are refused by name.

transformers' own quantizers decode the weights. What serves is then an ordinary model in the dtype
asked for: as fast and as exact as any other, and as large in memory. Activations and the KV cache
are not quantised, whatever a checkpoint says of them.
"""

import importlib.util
from typing import Any, NamedTuple

import torch

from baton.model.load.load_error import LoadError
from baton.model.load.served_types import UNDECODED_METHODS
from baton.model.transformers_api import PretrainedConfig, PreTrainedModel


class QuantMethod(NamedTuple):
    """The needs of one method."""

    packages: tuple[str, ...] = ()  # that transformers imports for it
    formats: tuple[str, ...] = ()  # that are served; () = the method has one only


SERVED_METHODS = {
    "fp8": QuantMethod(),
    "mxfp4": QuantMethod(),
    "compressed-tensors": QuantMethod(
        ("compressed_tensors",), ("float-quantized", "int-quantized", "pack-quantized")
    ),
    "bitsandbytes": QuantMethod(("bitsandbytes",)),
}
DECODED_WHILE_READ = {"fp8", "mxfp4", "compressed-tensors"}
_WHY_REFUSED = dict.fromkeys(UNDECODED_METHODS, ": gptqmodel, which decodes it, is not supported")


def quant_method(name: str, config: dict[str, Any]) -> str | None:
    """The method by which a model's config.json says that it is quantised; None = it is not.

    Raises LoadError when the method is not served, or a package that it needs is not there.
    """
    found = config.get("quantization_config")
    if not found:
        return None
    if not isinstance(found, dict):
        raise LoadError(f"model {name}: its quantization_config is not an object")
    method = str(found.get("quant_method") or _legacy_method(found))
    served = SERVED_METHODS.get(method)
    if served is None:
        why = _WHY_REFUSED.get(method, f"; served are {', '.join(sorted(SERVED_METHODS))}")
        raise LoadError(f"model {name}: quantised weights of {method!r} are not served{why}")
    format_ = found.get("format")
    if served.formats and format_ not in served.formats:
        known = ", ".join(served.formats)
        raise LoadError(f"model {name}: {method} in format {format_!r} is not served, only {known}")
    missing = [package for package in served.packages if importlib.util.find_spec(package) is None]
    if missing:
        needed = " and ".join(missing).replace("_", "-")
        raise LoadError(f"model {name}: quantised weights of {method!r} need the package {needed}")
    return method


def reading_arguments(method: str | None, config: PretrainedConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained` that make it decode where it can. May change `config`."""
    if method not in DECODED_WHILE_READ:
        return {}
    # In the model's own configuration: as an argument of its own it would cause a warning.
    config.quantization_config["dequantize"] = True
    return {"config": config}


def make_whole(model: PreTrainedModel, method: str, dtype: torch.dtype) -> None:
    """Decode what is not decoded yet, and give all weights `dtype`. Changes `model`."""
    if method not in DECODED_WHILE_READ:
        model.dequantize(dtype=dtype)  # type: ignore[no-untyped-call]
    kept: set[str] = set(model._keep_in_fp32_modules_strict or ())
    for name, parameter in model.named_parameters():
        # What was not quantised keeps the file's dtype.
        if parameter.is_floating_point() and not kept & set(name.split(".")):
            parameter.data = parameter.data.to(dtype)


def _legacy_method(config: dict[str, Any]) -> str:
    """Checkpoints from before methods had names were made by bitsandbytes."""
    has_bits = config.get("load_in_4bit") or config.get("load_in_8bit")
    return "bitsandbytes" if has_bits else "an unnamed method"
