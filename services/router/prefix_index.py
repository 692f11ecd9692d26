"""The prefix index of one model: the workers that hold each prefix block, by their KV events.

A map of hash -> holders (one bit per worker) matches a prompt against all workers in a single walk;
a set of hashes per worker makes it cheap to forget a worker. The index is only a hint: workers
check hashes themselves, so a wrong entry costs time, never correctness. Knows nothing of streams
and sequence numbers.
"""

from collections.abc import Iterable


class PrefixIndex:
    """Holds at most `max_hashes` (hash, worker) entries; further ones are left out."""

    def __init__(self, max_hashes: int) -> None:
        self._max_hashes = max_hashes
        self._holders: dict[bytes, int] = {}
        self._held: dict[str, set[bytes]] = {}
        self._bits: dict[str, int] = {}
        self.num_hashes = 0

    def stored(self, worker: str, hashes: Iterable[bytes]) -> int:
        """Add blocks that the worker has cached. Returns how many did not fit."""
        held, bit = self._held.setdefault(worker, set()), self._bit(worker)
        num_left_out = 0
        for block_hash in hashes:
            if block_hash in held:
                continue
            if self.num_hashes >= self._max_hashes:
                num_left_out += 1
                continue
            held.add(block_hash)
            self._holders[block_hash] = self._holders.get(block_hash, 0) | bit
            self.num_hashes += 1
        return num_left_out

    def removed(self, worker: str, hashes: Iterable[bytes]) -> None:
        """Remove blocks that the worker has evicted. Unknown ones are ignored."""
        held = self._held.get(worker, set())
        gone = held.intersection(hashes)
        held -= gone
        self._drop_holder(worker, gone)

    def replace(self, worker: str, hashes: Iterable[bytes]) -> int:
        """Replace the worker's entries by `hashes`. Returns how many did not fit."""
        self.clear(worker)
        return self.stored(worker, hashes)

    def clear(self, worker: str) -> None:
        """Remove all of the worker's entries: its cache is empty, or the worker is gone."""
        self._drop_holder(worker, self._held.pop(worker, set()))
        self._bits.pop(worker, None)

    def match(self, hashes: Iterable[bytes]) -> dict[str, int]:
        """Count a prompt's first blocks that each worker holds without a gap; 0 is left out."""
        depths: dict[str, int] = {}
        holding = sum(self._bits.values())
        depth = 0
        for block_hash in hashes:
            still = self._holders.get(block_hash, 0) & holding
            if still != holding:
                self._note(depths, holding & ~still, depth)
                holding = still
                if not holding:
                    break
            depth += 1
        self._note(depths, holding, depth)
        return depths

    def check_integrity(self) -> None:
        """Assert that map and sets agree, and that the count is right and within its limit."""
        assert self.num_hashes == sum(len(held) for held in self._held.values())
        assert 0 <= self.num_hashes <= self._max_hashes
        assert self._bits.keys() == self._held.keys()
        holders: dict[bytes, int] = {}
        for worker, held in self._held.items():
            for block_hash in held:
                holders[block_hash] = holders.get(block_hash, 0) | self._bits[worker]
        assert holders == self._holders

    def _note(self, depths: dict[str, int], bits: int, depth: int) -> None:
        if bits and depth:
            depths.update((name, depth) for name, bit in self._bits.items() if bit & bits)

    def _bit(self, worker: str) -> int:
        """The worker's own bit: the lowest free one for a new worker."""
        if worker not in self._bits:
            taken = sum(self._bits.values())
            self._bits[worker] = ~taken & (taken + 1)
        return self._bits[worker]

    def _drop_holder(self, worker: str, hashes: set[bytes]) -> None:
        self.num_hashes -= len(hashes)
        keep = ~self._bits.get(worker, 0)
        for block_hash in hashes:
            holders = self._holders[block_hash] & keep
            if holders:
                self._holders[block_hash] = holders
            else:
                del self._holders[block_hash]
