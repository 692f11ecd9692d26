"""From a model's name to a module that is ready to serve, or one line that says why not.

Runs transformers' own model classes; no code from a model's folder is ever executed, and weights
come from safetensors alone. They are read where the model will run: a weight of a GPU's model is in
host memory only while it is copied. What cannot be served is refused (`refusal.py`, `probe.py`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baton.model.load.load_error import LoadError, first_line, one_line_errors
from baton.model.load.memory_need import (
    CPU,
    LargestStep,
    MemoryNeed,
    make_outline,
    memory_need,
)
from baton.model.load.pooled_model import Pooler, make_pooler, pooling_of
from baton.model.load.probe import probe_model
from baton.model.load.quantization import make_whole, quant_method, reading_arguments
from baton.model.load.refusal import check_config, check_folder, check_rope, check_type
from baton.model.load.source import LOCAL_REVISION, ModelSource, find_config, find_model
from baton.model.load.tokenizer_file import tokenizer_of
from baton.model.load.weights_progress import told_weights
from baton.model.tensors.attention import PAGED, AttentionForm
from baton.model.tensors.kv_pool import TORCH_DTYPES
from baton.model.transformers_api import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
    logging,
)
from baton.system.load_progress import LoadStage, Tell, untold
from baton.wire.fingerprint import fingerprint_of
from baton.wire.kv_spec import KVSpec
from baton.wire.pooling import CLASSIFIER_TOKENS

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of a load. Only the check of free memory uses `kv_bytes` and `largest_step`."""

    dtype: str = "auto"
    block_size: int = 16
    max_model_len: int | None = None  # None = the model's own
    kv_bytes: int = 0
    largest_step: LargestStep = field(default_factory=LargestStep)
    keeps_float16: bool = False  # the device is as fast in float16 as in bfloat16
    device: torch.device = CPU  # that the weights are read to
    verifies_weights: bool = False
    tell: Tell = untold


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A module in evaluation mode and what the engine must know of it."""

    model: PreTrainedModel
    attention_modules: tuple[nn.Module, ...]
    attention_forms: tuple[AttentionForm, ...]  # as the probe saw them
    source: ModelSource
    kv_spec: KVSpec
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    memory: MemoryNeed
    digests: Mapping[str, str] = field(default_factory=dict)  # of its files; none without weights
    tokenizer_file: Path | None = None  # its own, or one that was made
    # Set: it gives states instead of logits.
    pooler: Pooler | None = None

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.digests) if self.digests else ""


def load_model(name: str, options: LoadOptions) -> LoadedModel:
    """Load a folder or hub id. Raises LoadError, whose message is one line for a person."""
    source = find_model(name)
    folder = source.folder
    config_json = _read_config(folder.name, folder / "config.json")
    check_folder(folder, config_json)
    method = quant_method(folder.name, config_json)
    config, model_class = _configured(source.name, folder)
    pooling = pooling_of(source)
    has_head = pooling is None or CLASSIFIER_TOKENS in config_json
    check_config(source.name, config, model_class)
    dtype = choose_dtype(options, config)
    max_model_len = choose_max_model_len(source.name, config, options.max_model_len)
    outline = make_outline(source.name, model_class, config)
    memory = memory_need(outline, dtype, options.largest_step, options.device)
    del outline
    memory.check(source.name, options.kv_bytes)
    with one_line_errors(source.name):
        # transformers reads one weight after the other and copies it to the device of its module.
        placed = {"dtype": dtype, "device_map": {"": str(options.device)}}
        arguments = placed | reading_arguments(method, config)
        with told_weights(options.tell):
            model, report = _read_model(source, model_class, arguments)
        _check_weights(source.name, model, report, has_head=has_head, is_whole=method is None)
        options.tell(LoadStage("check of its attention"))
        if method is not None:
            make_whole(model, method, dtype)
        pooler = None if pooling is None else make_pooler(source, model, pooling)
        described = _describe(source, model, max_model_len, options, memory)
        options.tell(LoadStage("digests of its files"))
        digests, file = tokenizer_of(folder, is_verified=options.verifies_weights)
        return replace(described, digests=digests, tokenizer_file=file, pooler=pooler)


def outline_model(name: str, options: LoadOptions) -> LoadedModel:
    """A model without its weights, from a folder, a configuration alone or a hub id.

    Its weights are on the device `meta`, and it has no fingerprint. Raises LoadError.
    """
    file = find_config(name)
    config_json = _read_config(name, file)
    own_name = file.resolve().parent.name if Path(name).expanduser().exists() else name
    source = ModelSource(file.parent, own_name, LOCAL_REVISION)
    check_type(source.name, config_json)
    config, model_class = _configured(source.name, file)
    check_config(source.name, config, model_class)
    dtype = choose_dtype(options, config)
    max_model_len = choose_max_model_len(source.name, config, options.max_model_len)
    outline: Any = make_outline(source.name, model_class, config)
    outline.to(dtype)
    if outline._can_set_experts_implementation():
        # The one that runs without values in each dtype.
        outline.set_experts_implementation("batched_mm")
    memory = memory_need(outline, dtype, options.largest_step)
    with one_line_errors(source.name):
        return _describe(source, outline, max_model_len, options, memory)


def _configured(name: str, path: Path) -> tuple[PretrainedConfig, type[PreTrainedModel]]:
    """The configuration in a folder or file, and the class that generates text from it."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with one_line_errors(name):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    return config, _model_class(name, config)


def choose_dtype(options: LoadOptions, config: PretrainedConfig) -> torch.dtype:
    """The dtype to compute in; "auto" keeps the checkpoint's where the device is made for it."""
    if options.dtype != "auto":
        return TORCH_DTYPES[options.dtype]
    stored = config.get_text_config().dtype
    if stored == torch.float16 and options.keeps_float16:
        return torch.float16
    return torch.bfloat16 if stored == torch.bfloat16 else torch.float32


def choose_max_model_len(name: str, config: PretrainedConfig, wanted: int | None) -> int:
    """The longest sequence to serve: at most what the model was built for."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if limit is None and wanted is None:
        raise LoadError(f"model {name}: does not say its context length, give --max-model-len")
    if limit is not None and wanted is not None and wanted > limit:
        raise LoadError(f"model {name}: --max-model-len {wanted} exceeds the model's {limit}")
    return int(limit if wanted is None else wanted)  # type: ignore[arg-type]


def _read_config(name: str, file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        raise LoadError(f"model {name}: no config.json in its folder") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"model {name}: {file.name}: {first_line(error)}") from None
    if not isinstance(config, dict):
        raise LoadError(f"model {name}: {file.name} is not an object")
    return config


def _model_class(name: str, config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that generates text from this configuration; some types have several."""
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is None:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "no causal text model"
        raise LoadError(f"model {name}: type {config.model_type!r} is {kind}, which is not served")
    classes = found if isinstance(found, tuple) else (found,)
    named = [one for one in classes if one.__name__ in (config.architectures or ())]
    return (named or classes)[0]  # type: ignore[no-any-return]


def _read_model(
    source: ModelSource, model_class: type[PreTrainedModel], arguments: dict[str, Any]
) -> tuple[PreTrainedModel, dict[str, set[Any]]]:
    """The model with its weights, and the names of those that do not fit, by problem."""
    loaded: Any = model_class.from_pretrained(
        source.folder,
        attn_implementation=PAGED,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are in the report, and refused then
        **arguments,
    )
    model, report = loaded
    model.eval().requires_grad_(False)
    return model, report


def _check_weights(
    name: str,
    model: PreTrainedModel,
    report: dict[str, set[Any]],
    *,
    has_head: bool,
    is_whole: bool,
) -> None:
    """Raises LoadError unless all fit; without `has_head` the output layer may lack its own."""
    problems = ["missing_keys", "mismatched_keys", "error_msgs"]
    if not is_whole:  # quantised: scales that nothing was multiplied with
        problems.append("unexpected_keys")
    if not has_head:
        report["missing_keys"] = _beyond_head(model, report["missing_keys"])
    for problem in problems:
        if report[problem]:
            first = sorted(map(str, report[problem]))[0]
            raise LoadError(
                f"model {name}: weights do not fit {type(model).__name__}: "
                f"{len(report[problem])} {problem}, such as {first}"
            )


def _beyond_head(model: PreTrainedModel, missing: Iterable[str]) -> set[str]:
    """The missing weights without those of the output layer."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    own = {id(parameter) for parameter in head.parameters()}
    names = {name for name, each in model.named_parameters() if id(each) in own}
    return set(missing) - names


def _describe(
    source: ModelSource,
    model: PreTrainedModel,
    max_model_len: int,
    options: LoadOptions,
    memory: MemoryNeed,
) -> LoadedModel:
    check_rope(source.name, model, max_model_len)
    embeddings: Any = model.get_input_embeddings()
    vocab_size: int = embeddings.num_embeddings
    try:
        probed = probe_model(model, vocab_size, max_model_len, options.block_size)
    except LoadError as error:
        raise LoadError(f"model {source.name}: {error}") from None
    return LoadedModel(
        model=model,
        attention_modules=probed.modules,
        attention_forms=probed.forms,
        source=source,
        kv_spec=probed.kv_spec,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=_eos_token_ids(model),
        memory=memory,
    )


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """End tokens: the generation configuration's, else the model's; () when neither has one."""
    generation = getattr(model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(model.config.get_text_config(), "eos_token_id", None)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, Iterable) else (int(found),)
