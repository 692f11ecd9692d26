"""Facts of a model that vLLM has loaded, in Baton's words."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.mask_thread import MaskThread
from baton.engine.grammar.states import GrammarStates
from baton.wire.kv_spec import DTYPE_BYTES, KVSpec


def end_token_ids(model_config: Any) -> list[int]:
    """The tokens that end an answer: those of the generation config, else those of the model's."""
    for config in (model_config.try_get_generation_config(), model_config.hf_config.to_dict()):
        ids = config.get("eos_token_id")
        if ids is not None:
            return list(ids) if isinstance(ids, list) else [ids]
    return []


def kv_spec_of(kv_cache_config: Any, num_heads: int, engine: str, order: str) -> KVSpec:
    """The block of a model whose layers are all alike: one page per layer, with the KV heads of all
    ranks.

    A page is not in Baton's own order: the kind names engine, version and `order`, so that only
    workers of that engine whose pages are in one order hand blocks to each other.
    Raises ValueError for a cache that is not handed over.
    """
    group, spec = only_group(kv_cache_config)
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"a KV cache of {dtype} is not handed over: one of {list(DTYPE_BYTES)} is")
    shape = (num_heads, spec.head_size, spec.head_size_v, dtype)
    return KVSpec.of_layers(
        spec.block_size, [shape] * len(group.layer_names), f"{engine} {order} attention"
    )


def page_order_of(kv_cache_config: Any, cache_dtype: str, *, is_cpu: bool) -> str:
    """The order within a page: on a device that of `ranks/cache_views.py`, on CPUs the one of
    vLLM's kernel for their instructions: AMX and AVX-512 have different ones."""
    if not is_cpu:
        return "HNC"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    _, spec = only_group(kv_cache_config)
    return f"cpu-{_get_attn_isa(spec.dtype, spec.block_size, spec.head_size, cache_dtype)}"


def only_group(kv_cache_config: Any) -> tuple[Any, Any]:
    """The one group of layers that the model has, and how they keep blocks. Raises ValueError."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"the model has {len(groups)} kinds of layers; one is supported")
    spec = groups[0].kv_cache_spec
    if not hasattr(spec, "num_kv_heads"):
        raise ValueError(f"layers of the kind {type(spec).__name__} are not handed over")
    return groups[0], spec


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
