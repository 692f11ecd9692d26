"""The prefix index of one model: the workers that hold each prefix block, by their KV events.

A map of hash -> holders (one bit per worker) matches a prompt against all workers in a single walk.
A log of hashes per worker, in the order in which they were stored, makes it cheap to forget a
worker and says which hashes to drop first. A hash is the last 8 bytes of the one on the wire, as a
number, and neighbours share the number of their holders: that is half of the memory. The index is
only a hint: workers check hashes themselves, so a wrong entry costs time, never correctness. Knows
nothing of streams and sequence numbers.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import HASH_BYTES

# A log is rewritten when it is so many times as long as what the worker holds, and so much longer.
_MAX_LOG_FACTOR = 2
_MIN_LOG_SLACK = 64


def hashes_of(joined: bytes) -> list[int]:
    """Split joined hashes into the index's numbers. Raises InvalidRequest for a length that is not
    a multiple of HASH_BYTES."""
    if len(joined) % HASH_BYTES:
        raise InvalidRequest(
            f"{len(joined)} bytes are not a multiple of {HASH_BYTES}, the length of a hash",
            param="block_hashes",
        )
    return memoryview(joined).cast("Q")[1::2].tolist()


@dataclass(slots=True)
class _Held:
    """One worker's entries. `log` has removed hashes, too, and those before `start` are done."""

    bit: int
    log: "array[int]" = field(default_factory=lambda: array("Q"))
    start: int = 0
    count: int = 0


class PrefixIndex:
    """Holds at most `max_hashes` entries of each worker; its oldest ones make room for new ones."""

    def __init__(self, max_hashes: int) -> None:
        self._max_hashes = max_hashes
        self._holders: dict[int, int] = {}
        self._held: dict[str, _Held] = {}
        # By the number of the bit.
        self._names: dict[int, str] = {}
        self._all_bits = 0
        self.num_hashes = 0
        # Counts the workers that came or went.
        self.version = 0

    def stored(self, worker: str, hashes: Iterable[int]) -> int:
        """Add blocks that the worker has cached. Returns how many old ones had to go."""
        held = self._held.get(worker) or self._new(worker)
        holders, log, bit = self._holders, held.log, held.bit
        num_before, before, after = len(log), 0, bit
        for block_hash in hashes:
            mask = holders.get(block_hash, 0)
            if mask & bit:
                continue
            if mask is not before:
                before, after = mask, mask | bit if mask else bit
            holders[block_hash] = after
            log.append(block_hash)
        num_new = len(log) - num_before
        held.count += num_new
        self.num_hashes += num_new
        return self._make_room(held)

    def removed(self, worker: str, hashes: Iterable[int]) -> None:
        """Remove blocks that the worker has evicted. Unknown ones are ignored."""
        if (held := self._held.get(worker)) is not None:
            self._drop(held, hashes)
            if len(held.log) - held.start > _MAX_LOG_FACTOR * held.count + _MIN_LOG_SLACK:
                self._rewrite(held)

    def replace(self, worker: str, hashes: Iterable[int]) -> int:
        """Replace the worker's entries by `hashes`. Returns how many of them had to go."""
        self.clear(worker)
        return self.stored(worker, hashes)

    def clear(self, worker: str) -> None:
        """Remove all of the worker's entries: its cache is empty, or the worker is gone."""
        if (held := self._held.pop(worker, None)) is not None:
            self._drop(held, held.log[held.start :])
            self._all_bits ^= held.bit
            del self._names[held.bit.bit_length() - 1]
            self.version += 1

    def match(self, hashes: Iterable[int]) -> dict[str, int]:
        """Count a prompt's first blocks that each worker holds without a gap; 0 is left out."""
        names = self._names
        return {
            names[number]: depth for bits, depth in self.steps(hashes) for number in _numbers(bits)
        }

    def steps(self, hashes: Iterable[int]) -> list[tuple[int, int]]:
        """The same as `match` for many workers at once: their bits, and how many blocks they hold.

        The order is from few blocks to many.
        """
        steps: list[tuple[int, int]] = []
        find, holding = self._holders.get, self._all_bits
        depth, known = 0, -1
        for block_hash in hashes:
            mask = find(block_hash, 0)
            if mask is not known:  # else it has the same holders as the block before
                still = mask & holding
                if still != holding:
                    if depth:
                        steps.append((holding ^ still, depth))
                    holding = still
                    if not holding:
                        return steps
                known = mask
            depth += 1
        if depth and holding:
            steps.append((holding, depth))
        return steps

    @property
    def num_bits(self) -> int:
        """All workers' numbers are smaller."""
        return self._all_bits.bit_length()

    def number(self, worker: str) -> int | None:
        """The number of the worker's bit, as long as `version` stays; None without entries."""
        held = self._held.get(worker)
        return None if held is None else held.bit.bit_length() - 1

    def check_integrity(self) -> None:
        """Assert that map and logs agree, and that the counts are right and within their limits."""
        assert self.num_hashes == sum(held.count for held in self._held.values())
        assert set(self._names.values()) == self._held.keys()
        assert self._all_bits == sum(held.bit for held in self._held.values())
        for held in self._held.values():
            logged = {h for h in held.log[held.start :] if self._holders.get(h, 0) & held.bit}
            assert len(logged) == held.count <= self._max_hashes
            assert len(logged) == sum(bool(mask & held.bit) for mask in self._holders.values())
        assert all(mask and not mask & ~self._all_bits for mask in self._holders.values())

    def _new(self, worker: str) -> _Held:
        """Give a new worker the lowest free bit."""
        bit = ~self._all_bits & (self._all_bits + 1)
        self._all_bits |= bit
        self._names[bit.bit_length() - 1] = worker
        self.version += 1
        self._held[worker] = held = _Held(bit)
        return held

    def _drop(self, held: _Held, hashes: Iterable[int]) -> int:
        """Take the worker from the holders of these; returns for how many it was one."""
        holders, bit = self._holders, held.bit
        before = after = num_gone = 0
        for block_hash in hashes:
            mask = holders.get(block_hash, 0)
            if not mask & bit:
                continue
            num_gone += 1
            if mask is not before:
                before, after = mask, mask ^ bit
            if after:
                holders[block_hash] = after
            else:
                del holders[block_hash]
        held.count -= num_gone
        self.num_hashes -= num_gone
        return num_gone

    def _make_room(self, held: _Held) -> int:
        """Drop the worker's oldest entries beyond its limit."""
        num_gone = 0
        while (excess := held.count - self._max_hashes) > 0:
            end = held.start + excess
            num_gone += self._drop(held, held.log[held.start : end])
            held.start = end
        if 2 * held.start > len(held.log):
            del held.log[: held.start]
            held.start = 0
        return num_gone

    def _rewrite(self, held: _Held) -> None:
        """Leave out of the log what the worker does not hold; of two mentions the later counts."""
        latest = dict.fromkeys(reversed(held.log[held.start :]))
        alive = [h for h in latest if self._holders.get(h, 0) & held.bit]
        held.log, held.start = array("Q", reversed(alive)), 0


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    text = bin(bits)[:1:-1]
    number = text.find("1")
    while number >= 0:
        yield number
        number = text.find("1", number + 1)
