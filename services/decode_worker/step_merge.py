"""Tokens on their way to one gateway: what several engine steps bring becomes one Step frame.

The stream's writer takes a frame whenever it can write one; everything that came meanwhile is
merged into columns, at most one entry per choice (token-path.md: without merging, a slow gateway
makes frames shrink to one token each). Bounded by the credit of the sequences.
"""

from baton.wire.v1 import worker_pb2

# Entries of one frame: with their tokens and side entries it stays below 1 MiB.
MAX_FRAME_ENTRIES = 1024
MAX_FRAME_TOKENS = 65_536

Key = tuple[int, int]  # handle, choice


class StepMerge:
    """What was produced and not yet written."""

    def __init__(self) -> None:
        self._tokens: dict[Key, tuple[int, list[int]]] = {}
        self._sides: dict[Key, worker_pb2.StepSide] = {}
        self.step = 0

    def add_token(self, key: Key, index: int, token_id: int) -> None:
        """The next output token of a choice; indexes are gapless."""
        if key not in self._tokens:
            self._tokens[key] = (index, [token_id])
            return
        first, ids = self._tokens[key]
        assert index == first + len(ids), "tokens of a choice arrive in order"
        ids.append(token_id)

    def add_prefill(self, key: Key, summary: worker_pb2.PrefillSummary) -> None:
        self._side(key).prefill.CopyFrom(summary)

    def add_finish(self, key: Key, finish: worker_pb2.Finish) -> None:
        """The choice has ended; leaves with or after its last tokens."""
        self._side(key).finish.CopyFrom(finish)

    def take(self) -> worker_pb2.WorkerFrame | None:
        """One Step frame with what waits, or None."""
        if not self._tokens and not self._sides:
            return None
        step = worker_pb2.Step(step=self.step)
        counts = self._take_tokens(step)
        if any(count != 1 for count in counts):
            step.counts.extend(counts)
        self._take_sides(step)
        return worker_pb2.WorkerFrame(step=step)

    def _take_tokens(self, step: worker_pb2.Step) -> list[int]:
        counts: list[int] = []
        handles, choices, firsts = step.handles, step.choices, step.first_index
        while self._tokens and len(counts) < MAX_FRAME_ENTRIES:
            if counts and len(step.ids) >= MAX_FRAME_TOKENS:
                break
            # The oldest first: dictionaries keep the order of insertion.
            key = next(iter(self._tokens))
            first, ids = self._tokens.pop(key)
            handles.append(key[0])
            choices.append(key[1])
            firsts.append(first)
            step.ids.extend(ids)
            counts.append(len(ids))
        return counts

    def _take_sides(self, step: worker_pb2.Step) -> None:
        for key in list(self._sides):
            if len(step.side) >= MAX_FRAME_ENTRIES:
                break
            if key not in self._tokens:
                step.side.append(self._sides.pop(key))

    def _side(self, key: Key) -> worker_pb2.StepSide:
        side = self._sides.get(key)
        if side is None:
            side = self._sides[key] = worker_pb2.StepSide(handle=key[0], choice=key[1])
        return side
