"""Checks that the block books of a running engine balance, from counters that are kept anyway.

Every block is free (blank, or idle in the prefix cache) or referenced; promises are a part of the
free ones; every reference is in the table of a sequence that lives; every promise has a sequence,
and every lease of rows.
A look costs one addition per live sequence. `check_integrity` is its thorough sibling, for tests:
this one goes on in production, and reports what it finds instead of stopping. Knows no steps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from baton.engine.kv.block_manager import BlockManager
from baton.engine.sequence.sequence import Sequence
from baton.system.violation import Violation

# Blocks and requests that a violation names at most.
MAX_NAMED = 8


class BlockAudit:
    """`holders` gives every sequence that may have blocks, the beams of searches included."""

    def __init__(self, manager: BlockManager, holders: Callable[[], Iterable[Sequence]]) -> None:
        self._manager = manager
        self._holders = holders

    def look(self) -> Iterator[Violation]:
        """Find what is wrong now."""
        holders = list(self._holders())
        if (imbalance := self._manager.imbalance()) is not None:
            yield Violation("kv_blocks", "", imbalance)
        num_held = sum(seq.table.num_blocks for seq in holders)
        if num_held != self._manager.num_references:
            yield self._name_references(holders, num_held)
        live = {seq.request.seq_id for seq in holders}
        for seq_id, request_id, num_blocks in self._manager.promises():
            if seq_id not in live:
                detail = f"{num_blocks} blocks are promised to sequence {seq_id}, which has ended"
                yield Violation("kv_promise", request_id, detail)
        if lost := sorted(self._manager.rows.leases.holders - live):
            yield Violation(
                "handoff_rows", "", f"sequences {lost[:MAX_NAMED]} have ended with rows"
            )

    def _name_references(self, holders: list[Sequence], num_held: int) -> Violation:
        """Name the blocks, and the requests with tables that name one without holding it."""
        expected = Counter(block for seq in holders for block in seq.table.ids.tolist())
        wrong = self._manager.wrong_references(expected)
        owners = {
            seq.request.request_id
            for seq in holders
            if not wrong.isdisjoint(seq.table.ids.tolist())
        }
        detail = (
            f"tables name {num_held} blocks, {self._manager.num_references} are referenced; "
            f"they differ in {sorted(wrong)[:MAX_NAMED]}"
        )
        return Violation("kv_references", ",".join(sorted(owners)[:MAX_NAMED]), detail)
