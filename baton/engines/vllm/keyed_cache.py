"""vLLM's prefix cache under Baton's keyed hashes, and what enters and leaves it.

vLLM asks for a hasher of its requests' blocks; with this one its hashes are Baton's, so that
tenants and adapters share nothing and the router knows each block by the hash that the tokenizer
computed. It may hold several blocks of one hash, and tells of each: only the first that comes and
the last that goes count.
"""

from array import array
from collections import Counter
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored

from baton.engine.kv.block_pool import KvEventLog
from baton.engine.protocol.messages import AddSequence, StepEvents
from baton.wire.prefix_hash import (
    CACHE_KEY_BYTES,
    next_hash,
    root_hash,
    short_hash,
    split_hashes,
)

_MAX_ROOTS = 4096


def cache_salt(cache_key: bytes, adapter: str) -> str:
    """The key of a request's hashes and its adapter, as vLLM passes them on."""
    return cache_key.hex() + adapter


def _parts(salt: str) -> tuple[bytes, str]:
    """The key and the adapter of a salt."""
    num_chars = 2 * CACHE_KEY_BYTES
    return bytes.fromhex(salt[:num_chars]), salt[num_chars:]


class KeyedCache:
    """The hashes of one engine; stands in for vLLM's hasher and for its publisher of events."""

    def __init__(self, model_fp: str, block_size: int) -> None:
        self._model_fp = model_fp
        self._block_size = block_size
        self._roots: dict[str, bytes] = {}
        # By request: the hashes that the front gave with its prompt.
        self._given: dict[str, list[bytes]] = {}
        self._num_copies: Counter[bytes] = Counter()
        self._log = KvEventLog()
        self._digest = 0

    def expect(self, name: str, add: AddSequence) -> None:
        """Hash the blocks of this request from now on."""
        self._given[name] = split_hashes(add.block_hashes)

    def forget(self, name: str) -> None:
        """The request has ended."""
        self._given.pop(name, None)

    def hash_blocks(self, request: Any) -> list[bytes]:
        """The hashes of the request's full blocks that it does not have yet; vLLM calls this."""
        size, have = self._block_size, request.block_hashes
        given = self._given.get(request.request_id, [])
        key, _ = _parts(request.cache_salt)
        parent = have[-1] if have else self._root(request.cache_salt)
        new: list[bytes] = []
        for index in range(len(have), request.num_tokens // size):
            if index < len(given):
                parent = given[index]
            else:
                ids = request.all_token_ids[index * size : (index + 1) * size]
                parent = next_hash(parent, array("I", ids).tobytes(), key)
            new.append(parent)
        return new

    def publish(self, batch: Any) -> None:
        """Take in what has entered and left the cache in a step; vLLM calls this."""
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._stored(event)
            elif isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    self._removed(block_hash)

    def shutdown(self) -> None:
        """Nothing to end; vLLM calls this."""

    def report(self, events: StepEvents) -> None:
        """Write what has happened since the last report."""
        events.removed_hashes, events.stored = self._log.take()
        events.num_cached_hashes, events.cache_digest = len(self._num_copies), self._digest

    def clear(self) -> None:
        """The cache was emptied, and nobody was told of what it had."""
        self._num_copies.clear()
        self._log.take()
        self._digest = 0

    def snapshot(self) -> bytes:
        """All hashes in the cache."""
        return b"".join(self._num_copies)

    def _stored(self, event: Any) -> None:
        parent = event.parent_block_hash or self._root(event.extra_keys[0][-1])
        for block_hash in event.block_hashes:
            self._num_copies[block_hash] += 1
            if self._num_copies[block_hash] == 1:
                self._digest ^= short_hash(block_hash)
                self._log.stored(block_hash, parent)
            parent = block_hash

    def _removed(self, block_hash: bytes) -> None:
        self._num_copies[block_hash] -= 1
        if not self._num_copies[block_hash]:
            del self._num_copies[block_hash]
            self._digest ^= short_hash(block_hash)
            self._log.removed(block_hash)

    def _root(self, salt: str) -> bytes:
        root = self._roots.get(salt)
        if root is None:
            if len(self._roots) >= _MAX_ROOTS:
                self._roots.clear()
            root = root_hash(self._model_fp, self._block_size, *_parts(salt))
            self._roots[salt] = root
        return root
