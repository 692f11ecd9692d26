"""Chooses the size of the KV pool: the one asked for, or what a share of free memory leaves.

Never more than full batches of the longest sequences could fill, never less than one sequence of
the longest length: a length that was not asked for is lowered to what fits.
"""

import dataclasses
from dataclasses import dataclass

from baton.model.load.load import LoadedModel
from baton.model.load.load_error import LoadError
from baton.system.byte_size import format_bytes

MIN_CONTEXT_TOKENS = 256
# Where free memory cannot be measured.
FALLBACK_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The size asked for. `kv_bytes` None = from `memory_share` of the free memory."""

    kv_bytes: int | None = None
    # Of the memory that was free before loading: for weights, activations and pool together.
    memory_share: float = 0.8
    max_num_seqs: int = 64


def choose_pool(loaded: LoadedModel, options: PoolOptions) -> int:
    """Bytes of the pool, whole blocks. Raises LoadError when nothing is left for it."""
    if options.kv_bytes is not None:
        return options.kv_bytes // loaded.kv_spec.row_bytes * loaded.kv_spec.row_bytes
    spec, memory = loaded.kv_spec, loaded.memory
    most = options.max_num_seqs * spec.num_blocks_for(loaded.max_model_len)
    room = memory.room_bytes(options.memory_share)
    left = FALLBACK_BYTES if room is None else room
    least = spec.num_blocks_for(min(MIN_CONTEXT_TOKENS, loaded.max_model_len)) * spec.row_bytes
    if left < least and memory.free_bytes is not None:
        raise LoadError(
            f"model {loaded.source.name}: needs {format_bytes(memory.weight_bytes)} for weights, "
            f"{format_bytes(memory.activation_bytes)} for activations and at least "
            f"{format_bytes(least)} for the KV cache, its share of what is free is "
            f"{format_bytes(memory.free_bytes * options.memory_share)}: say --kv-memory"
        )
    return min(left // spec.row_bytes, most) * spec.row_bytes


def fit_length(loaded: LoadedModel, kv_bytes: int, *, is_length_wanted: bool) -> LoadedModel:
    """Make sure that the pool holds one sequence of the longest length. Raises LoadError."""
    spec = loaded.kv_spec
    num_tokens = kv_bytes // spec.row_bytes * spec.block_size
    if num_tokens >= loaded.max_model_len:
        return loaded
    if num_tokens >= MIN_CONTEXT_TOKENS and not is_length_wanted:
        return dataclasses.replace(loaded, max_model_len=num_tokens)
    needed = spec.num_blocks_for(loaded.max_model_len) * spec.row_bytes
    raise LoadError(
        f"model {loaded.source.name}: a KV cache of {format_bytes(kv_bytes)} holds {num_tokens} "
        f"tokens, one sequence may have {loaded.max_model_len}: raise --kv-memory to {needed} "
        f"({-(-needed // 2**20)}MiB) or lower --max-model-len"
    )
