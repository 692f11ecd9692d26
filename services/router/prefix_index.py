"""Which worker of one model holds which prefix blocks, as far as its KV events told.

One set of hashes per worker rather than one map of holders: a worker's restart, loss or snapshot
then costs no scan of the others, and the match walks each set at C speed. The index only steers:
workers check hashes themselves, so a wrong entry costs time, never correctness. Knows nothing of
streams and sequence numbers.
"""

from collections.abc import Iterable, Sequence

_STRIDE = 64


class PrefixIndex:
    """Holds at most `max_hashes` hashes over all workers; what does not fit is not remembered."""

    def __init__(self, max_hashes: int) -> None:
        self._max_hashes = max_hashes
        self._held: dict[str, set[bytes]] = {}
        self.num_hashes = 0

    def stored(self, worker: str, hashes: Iterable[bytes]) -> int:
        """These blocks are in the worker's cache now. Returns how many did not fit."""
        held = self._held.setdefault(worker, set())
        num_left_out = 0
        for block_hash in hashes:
            if block_hash in held:
                continue
            if self.num_hashes >= self._max_hashes:
                num_left_out += 1
                continue
            held.add(block_hash)
            self.num_hashes += 1
        return num_left_out

    def removed(self, worker: str, hashes: Iterable[bytes]) -> None:
        """These blocks have left the worker's cache. Unknown ones are ignored."""
        held = self._held.get(worker)
        if held is None:
            return
        before = len(held)
        held.difference_update(hashes)
        self.num_hashes -= before - len(held)

    def replace(self, worker: str, hashes: Iterable[bytes]) -> int:
        """Forget what the worker held and take `hashes` instead. Returns how many did not fit."""
        self.clear(worker)
        return self.stored(worker, hashes)

    def clear(self, worker: str) -> None:
        """The worker's cache is empty, or the worker is gone."""
        self.num_hashes -= len(self._held.pop(worker, ()))

    def match(self, worker: str, hashes: Sequence[bytes]) -> int:
        """How many of a prompt's first blocks the worker holds without a hole."""
        held = self._held.get(worker)
        if not held:
            return 0
        start = 0
        while start < len(hashes) and held.issuperset(hashes[start : start + _STRIDE]):
            start += _STRIDE
        while start < len(hashes) and hashes[start] in held:
            start += 1
        return min(start, len(hashes))

    def check_integrity(self) -> None:
        """Assert that the count is right and within its limit."""
        assert self.num_hashes == sum(len(held) for held in self._held.values())
        assert 0 <= self.num_hashes <= self._max_hashes
