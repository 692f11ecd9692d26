"""Facts of a model that vLLM has loaded, in Baton's words."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.mask_thread import MaskThread
from baton.engine.grammar.states import GrammarStates
from baton.wire.kv_spec import KVSpec


def end_token_ids(model_config: Any) -> list[int]:
    """The tokens that end an answer: those of the generation config, else those of the model's."""
    for config in (model_config.try_get_generation_config(), model_config.hf_config.to_dict()):
        ids = config.get("eos_token_id")
        if ids is not None:
            return list(ids) if isinstance(ids, list) else [ids]
    return []


def kv_spec_of(kv_cache_config: Any, num_heads: int, engine: str) -> KVSpec:
    """The block of a model whose layers are all alike: one page per layer, with the KV heads of all
    ranks.

    A page is `[heads][tokens][K and V of a token]`, which is not Baton's own order: the kind names
    engine and version, so that only workers of that engine hand blocks to each other.
    Raises ValueError for a model with several groups of layers.
    """
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"the model has {len(groups)} kinds of layers; one is supported")
    (group,) = groups
    spec = group.kv_cache_spec
    dtype = str(spec.dtype).removeprefix("torch.")
    shape = (num_heads, spec.head_size, spec.head_size, dtype)
    return KVSpec.of_layers(
        spec.block_size, [shape] * len(group.layer_names), f"{engine} HNC attention"
    )


def grammar_states(
    tokenizer_file: Path | None, vocab_size: int, end_ids: Sequence[int]
) -> GrammarStates | None:
    """The grammars of the model's vocabulary; None when it has no tokenizer.json and none can be
    made."""
    if tokenizer_file is None:
        return None
    compiler = GrammarCompiler(tokenizer_file, vocab_size, end_ids)
    compiling = ThreadPoolExecutor(1, thread_name_prefix="grammar-compile")
    return GrammarStates(compiler, compiling, MaskThread())
