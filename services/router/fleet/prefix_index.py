"""The prefix index of one model: the workers that hold each prefix block, by their KV events.

A map of hash -> holders (one bit per worker) matches a prompt against all workers in a single walk.
A log of hashes per worker, in the order in which they were stored, makes it cheap to forget a
worker and says which hashes to drop first. A hash is the last 8 bytes of the one on the wire, as a
number, and neighbours share the number of their holders: that is half of the memory. The index is
only a hint: workers check hashes themselves, so a wrong entry costs time, never correctness.

Nothing here takes long at once: a snapshot is built beside the entries in use, which it replaces
when it is whole, and entries that count no more are dropped little by little (`sweep`). Knows
nothing of streams and sequence numbers.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby, repeat
from operator import xor

from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import HASH_BYTES

# Beyond its first blocks a prompt is looked up in strides: caches evict the end of a prefix before
# its beginning, so the workers that hold the last block of a stride hold the others, too.
_NUM_LOOKED_UP = 64
_STRIDE = 32
# So many entries of a log are looked at for one report.
_TIDIED = 2048
# A log is rewritten when it is so many times as long as what the worker holds, and so much longer.
_MAX_LOG_FACTOR = 2
_MIN_LOG_SLACK = 64


def hashes_of(joined: bytes) -> list[int]:
    """Split joined hashes into the index's numbers. Raises InvalidRequest for a length that is not
    a multiple of HASH_BYTES."""
    return view_of(joined).tolist()


def view_of(joined: bytes) -> "memoryview[int]":
    """The same without a copy: of a long prompt few hashes are looked at."""
    if len(joined) % HASH_BYTES:
        raise InvalidRequest(
            f"{len(joined)} bytes are not a multiple of {HASH_BYTES}, the length of a hash",
            param="block_hashes",
        )
    return memoryview(joined).cast("Q")[1::2]


@dataclass(slots=True)
class _Tidying:
    """A log that is being rewritten, from its end: all before `left` is still to be looked at.

    `alive` are the hashes that were found, the newest first. What came after `end` stays.
    """

    end: int
    left: int
    seen: set[int] = field(default_factory=set)
    alive: "array[int]" = field(default_factory=lambda: array("Q"))


@dataclass(slots=True)
class _Held:
    """One worker's entries. `log` has removed hashes, too, and those before `start` are done.

    `num_forgotten` blocks had to go although the worker holds them. `digest` is the XOR of all
    blocks that it holds, these included.
    """

    bit: int
    log: "array[int]" = field(default_factory=lambda: array("Q"))
    start: int = 0
    count: int = 0
    num_forgotten: int = 0
    digest: int = 0
    tidying: _Tidying | None = None


class PrefixIndex:
    """Holds at most `max_hashes` entries of each worker; its oldest ones make room for new ones."""

    def __init__(self, max_hashes: int) -> None:
        self._max_hashes = max_hashes
        self._holders: dict[int, int] = {}
        self._held: dict[str, _Held] = {}
        # The entries of snapshots that are not whole yet.
        self._building: dict[str, _Held] = {}
        # Entries that count no more, and the bits that cannot be given out yet.
        self._retired: list[_Held] = []
        self._used_bits = 0
        # By the number of the bit.
        self._names: dict[int, str] = {}
        # Of the workers that count.
        self._all_bits = 0
        self.num_hashes = 0
        # Counts the workers that came or went.
        self.version = 0

    def stored(self, worker: str, hashes: Iterable[int]) -> int:
        """Add blocks that the worker has cached. Returns how many old ones had to go."""
        held = self._held.get(worker) or self._take_in(worker, self._new())
        num_before = held.count
        num_gone = self._add(held, hashes)
        self.num_hashes += held.count - num_before
        return num_gone

    def removed(self, worker: str, hashes: Sequence[int]) -> None:
        """Remove blocks that the worker has evicted. Unknown ones are ignored."""
        if (held := self._held.get(worker)) is None:
            return
        if held.num_forgotten:
            self._remove_forgotten(held, hashes)
        num_gone = self._drop(held, hashes, is_evicted=True)
        self.num_hashes -= num_gone
        self._tidy(held)

    def build(self, worker: str, hashes: Iterable[int]) -> int:
        """Add a part of a snapshot, which counts when it is whole. Returns how many had to go."""
        if (held := self._building.get(worker)) is None:
            held = self._building[worker] = self._new()
        return self._add(held, hashes)

    def finish(self, worker: str) -> None:
        """Replace the worker's entries by the snapshot that was built, if there is one."""
        if (held := self._building.pop(worker, None)) is not None:
            self.clear(worker)
            self._take_in(worker, held)
            self.num_hashes += held.count

    def abandon(self, worker: str) -> None:
        """Drop a snapshot that will not become whole."""
        if (held := self._building.pop(worker, None)) is not None:
            self._retired.append(held)

    def clear(self, worker: str) -> None:
        """Remove all of the worker's entries: its cache is empty, or the worker is gone."""
        if (held := self._held.pop(worker, None)) is not None:
            self.num_hashes -= held.count
            self._all_bits ^= held.bit
            del self._names[held.bit.bit_length() - 1]
            self._retired.append(held)
            self.version += 1

    def sweep(self, max_hashes: int) -> None:
        """Give back the memory of at most so many entries that count no more."""
        while self._retired and max_hashes > 0:
            held = self._retired[-1]
            end = held.start + max_hashes
            part = held.log[held.start : end]
            self._drop(held, part)
            held.start = end
            max_hashes -= len(part)
            if end >= len(held.log):
                self._retired.pop()
                self._used_bits ^= held.bit

    def digest(self, worker: str) -> tuple[int, int]:
        """How many blocks the worker holds by its own reports, and the XOR of their hashes."""
        held = self._held.get(worker)
        return (0, 0) if held is None else (held.count + held.num_forgotten, held.digest)

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """Count a prompt's first blocks that each worker holds without a gap; 0 is left out."""
        names = self._names
        return {
            names[number]: depth
            for bits, depth in self.steps(hashes)
            for number in numbers_of(bits)
        }

    def steps(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """The same as `match` for many workers at once: their bits, and how many blocks they hold.

        The order is from few blocks to many.
        """
        steps: list[tuple[int, int]] = []
        find, holding = self._holders.get, self._all_bits
        depth, end, num_blocks, known = 0, _NUM_LOOKED_UP, len(hashes), -1
        while depth < num_blocks and holding:
            if depth and end <= num_blocks and find(hashes[end - 1], 0) == known:
                depth = end
                end += _STRIDE
                continue
            for known, run in groupby(map(find, hashes[depth:end], repeat(0))):
                still = known & holding
                if still != holding and depth:
                    steps.append((holding ^ still, depth))
                holding = still
                if not holding:
                    break
                depth += len(list(run))
            end += _STRIDE
        if holding and depth:
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
        assert self._used_bits == sum(held.bit for held in self._all())
        for held in self._all():
            logged = {h for h in held.log[held.start :] if self._holders.get(h, 0) & held.bit}
            assert len(logged) == held.count <= self._max_hashes
            assert len(logged) == sum(bool(mask & held.bit) for mask in self._holders.values())
        for held in self._held.values():
            known = (h for h, mask in self._holders.items() if mask & held.bit)
            assert held.num_forgotten or reduce(xor, known, 0) == held.digest
        assert all(mask and not mask & ~self._used_bits for mask in self._holders.values())

    def _all(self) -> list[_Held]:
        return [*self._held.values(), *self._building.values(), *self._retired]

    def _new(self) -> _Held:
        """Give out the lowest free bit."""
        bit = ~self._used_bits & (self._used_bits + 1)
        self._used_bits |= bit
        return _Held(bit)

    def _take_in(self, worker: str, held: _Held) -> _Held:
        """Let the entries count as this worker's."""
        self._held[worker] = held
        self._all_bits |= held.bit
        self._names[held.bit.bit_length() - 1] = worker
        self.version += 1
        return held

    def _add(self, held: _Held, hashes: Iterable[int]) -> int:
        """Add entries; returns how many old ones had to go."""
        holders, log, bit = self._holders, held.log, held.bit
        num_before, before, after, digest = len(log), 0, bit, held.digest
        for block_hash in hashes:
            mask = holders.get(block_hash, 0)
            if mask & bit:
                continue
            if mask is not before:
                before, after = mask, mask | bit if mask else bit
            holders[block_hash] = after
            digest ^= block_hash
            log.append(block_hash)
        held.digest = digest
        held.count += len(log) - num_before
        return self._make_room(held)

    def _drop(self, held: _Held, hashes: Iterable[int], *, is_evicted: bool = False) -> int:
        """Take the worker from the holders of these; returns for how many it was one.

        Those that the worker has evicted leave its digest.
        """
        holders, bit, digest = self._holders, held.bit, held.digest
        before = after = num_gone = 0
        for block_hash in hashes:
            mask = holders.get(block_hash, 0)
            if not mask & bit:
                continue
            num_gone += 1
            digest ^= block_hash
            if mask is not before:
                before, after = mask, mask ^ bit
            if after:
                holders[block_hash] = after
            else:
                del holders[block_hash]
        held.count -= num_gone
        if is_evicted:
            held.digest = digest
        return num_gone

    def _remove_forgotten(self, held: _Held, hashes: Iterable[int]) -> None:
        """Note that the worker has evicted blocks that had to go here."""
        unknown = [h for h in hashes if not self._holders.get(h, 0) & held.bit]
        for block_hash in unknown[: held.num_forgotten]:
            held.digest ^= block_hash
            held.num_forgotten -= 1

    def _make_room(self, held: _Held) -> int:
        """Drop the worker's oldest entries beyond its limit."""
        num_gone = 0
        while (excess := held.count - self._max_hashes) > 0:
            end = held.start + excess
            num_gone += self._drop(held, held.log[held.start : end])
            held.start = end
        held.num_forgotten += num_gone
        if held.tidying is None and 2 * held.start > len(held.log):
            del held.log[: held.start]
            held.start = 0
        return num_gone

    def _tidy(self, held: _Held) -> None:
        """Leave out of a long log what the worker does not hold, a part at a time; of two mentions
        the later counts."""
        num_logged = len(held.log)
        if held.tidying is None:
            if num_logged - held.start <= _MAX_LOG_FACTOR * held.count + _MIN_LOG_SLACK:
                return
            held.tidying = _Tidying(num_logged, num_logged)
        work = held.tidying
        first = max(held.start, work.left - _TIDIED)
        for block_hash in reversed(held.log[first : work.left]):
            if block_hash not in work.seen:
                work.seen.add(block_hash)
                if self._holders.get(block_hash, 0) & held.bit:
                    work.alive.append(block_hash)
        work.left = first
        if first == held.start:
            work.alive.reverse()
            held.log, held.start = work.alive + held.log[work.end :], 0
            held.tidying = None


def numbers_of(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    text = bin(bits)[:1:-1]
    number = text.find("1")
    while number >= 0:
        yield number
        number = text.find("1", number + 1)
