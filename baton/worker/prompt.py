"""Prompts on the wire: too long for one frame, they continue in parts.

Token ids are u32 little-endian bytes throughout; they are never turned into Python
lists. The engine's core checks what they say.
"""

from collections.abc import Iterator

from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import CACHE_KEY_BYTES, HASH_BYTES, TOKEN_BYTES

# Ids of one frame; with their hashes and the other fields a frame stays below 1 MiB.
MAX_PART_BYTES = 512 * 1024


class PromptBuffer:
    """Collects a prompt of `num_tokens` tokens from its first frame and the parts."""

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        """Raises InvalidRequest when the prompt cannot fit into the model's context."""
        if num_tokens > max_tokens:
            raise InvalidRequest(
                f"{num_tokens} prompt tokens exceed the context length of {max_tokens}",
                reason="context_length_exceeded",
            )
        self._num_bytes = num_tokens * TOKEN_BYTES
        self._ids = bytearray()
        self._hashes = bytearray()

    @property
    def is_complete(self) -> bool:
        return len(self._ids) == self._num_bytes

    @property
    def token_ids(self) -> bytes:
        return bytes(self._ids)

    @property
    def block_hashes(self) -> bytes:
        return bytes(self._hashes)

    def add(self, token_ids: bytes, block_hashes: bytes) -> None:
        """Raises InvalidRequest when there is more than was announced."""
        if len(self._ids) + len(token_ids) > self._num_bytes:
            raise InvalidRequest("the prompt has more tokens than announced")
        if len(self._hashes) + len(block_hashes) > self._num_bytes // TOKEN_BYTES * HASH_BYTES:
            raise InvalidRequest("the prompt has more block hashes than tokens")
        self._ids += token_ids
        self._hashes += block_hashes


def check_cache_key(cache_key: bytes) -> None:
    """Raises InvalidRequest; the message does not repeat the key."""
    if len(cache_key) != CACHE_KEY_BYTES:
        raise InvalidRequest(f"a cache key has {CACHE_KEY_BYTES} bytes, not {len(cache_key)}")


def split_prompt(token_ids: bytes, block_hashes: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Pairs (ids, hashes) for the first frame and the parts; at least one pair."""
    size = MAX_PART_BYTES
    for start in range(0, max(len(token_ids), len(block_hashes), 1), size):
        yield token_ids[start : start + size], block_hashes[start : start + size]
