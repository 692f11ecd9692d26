"""Frames on their way to one gateway: what several engine steps bring becomes one Step frame.

The stream's writer takes a frame whenever it can write one; everything that came meanwhile is
merged into columns, at most one entry per choice (decision 0031: without merging, a slow gateway
makes frames shrink to one token each). Bounded by the credit of the sequences, and by their prompts
where logprobs of those are wanted.
"""

from collections import deque
from typing import NamedTuple

from baton.wire.v1 import worker_pb2

# Entries of one frame: with their tokens and side entries it stays below 1 MiB.
MAX_FRAME_ENTRIES = 1024
MAX_FRAME_TOKENS = 65_536
# Log probabilities of one frame, at most 10 bytes each; the last entry may exceed it.
MAX_FRAME_LOGPROBS = 32_768
# Vectors of one frame; the last one may exceed it.
MAX_FRAME_VECTOR_BYTES = 512 * 1024

Key = tuple[int, int]  # handle, choice


class _Entry(NamedTuple):
    """New tokens of one choice; `logprobs` is empty or has one for each."""

    first_index: int
    ids: list[int]
    logprobs: list[worker_pb2.TokenLogprobs]


class StepMerge:
    """Tokens that were produced and are not written yet."""

    def __init__(self) -> None:
        self._tokens: dict[Key, _Entry] = {}
        self._prompt_logprobs: deque[tuple[Key, worker_pb2.TokenLogprobs]] = deque()
        self._sides: dict[Key, worker_pb2.StepSide] = {}
        self._notices: deque[worker_pb2.WorkerFrame] = deque()
        self.step = 0

    @property
    def num_notices(self) -> int:
        return len(self._notices)

    @property
    def has_tokens(self) -> bool:
        """Output tokens, or logprobs of prompt tokens, wait to be written."""
        return bool(self._tokens or self._prompt_logprobs)

    def add_notice(self, frame: worker_pb2.WorkerFrame) -> None:
        """A whole frame, such as a refusal, that overtakes all tokens."""
        self._notices.append(frame)

    def add_token(
        self,
        key: Key,
        index: int,
        token_id: int,
        logprobs: worker_pb2.TokenLogprobs | None = None,
    ) -> None:
        """The next output token of a choice; indexes are gapless."""
        entry = self._tokens.get(key)
        if entry is None:
            entry = self._tokens[key] = _Entry(index, [], [])
        assert index == entry.first_index + len(entry.ids), "tokens of a choice arrive in order"
        entry.ids.append(token_id)
        if logprobs is not None:
            entry.logprobs.append(logprobs)

    def add_prompt_logprobs(self, key: Key, logprobs: worker_pb2.TokenLogprobs) -> None:
        """Logprobs of the next prompt token; they leave before every token that comes later."""
        self._prompt_logprobs.append((key, logprobs))

    def add_prefill(self, key: Key, summary: worker_pb2.PrefillSummary) -> None:
        self._side(key).prefill.CopyFrom(summary)

    def add_finish(self, key: Key, finish: worker_pb2.Finish) -> None:
        """The choice has ended; leaves with or after its last tokens."""
        self._side(key).finish.CopyFrom(finish)

    def take(self) -> worker_pb2.WorkerFrame | None:
        """The oldest notice, else one Step frame with what waits, or None."""
        if self._notices:
            return self._notices.popleft()
        if not self._tokens and not self._sides and not self._prompt_logprobs:
            return None
        step = worker_pb2.Step(step=self.step)
        num_logprobs = self._take_prompt_logprobs(step)
        if self._prompt_logprobs:
            return worker_pb2.WorkerFrame(step=step)
        counts = self._take_tokens(step, num_logprobs)
        if counts.count(1) < len(counts):
            step.counts.extend(counts)
        self._take_sides(step)
        return worker_pb2.WorkerFrame(step=step)

    def _take_prompt_logprobs(self, step: worker_pb2.Step) -> int:
        """As many as fit; returns their number of log probabilities."""
        sides: dict[Key, worker_pb2.StepSide] = {}
        num_logprobs = 0
        while self._prompt_logprobs and num_logprobs < MAX_FRAME_LOGPROBS:
            key, logprobs = self._prompt_logprobs.popleft()
            if key not in sides:
                sides[key] = worker_pb2.StepSide(handle=key[0], choice=key[1])
            sides[key].prompt_logprobs.append(logprobs)
            num_logprobs += 1 + len(logprobs.top_ids)
        step.side.extend(sides.values())
        return num_logprobs

    def _take_tokens(self, step: worker_pb2.Step, num_logprobs: int) -> list[int]:
        counts: list[int] = []
        handles, choices, firsts = step.handles, step.choices, step.first_index
        while self._tokens and len(counts) < MAX_FRAME_ENTRIES:
            if len(step.ids) >= MAX_FRAME_TOKENS or num_logprobs >= MAX_FRAME_LOGPROBS:
                break
            # The oldest first: dictionaries keep the order of insertion.
            key = next(iter(self._tokens))
            first, ids, logprobs = self._tokens.pop(key)
            if logprobs:
                self._side(key).logprobs.extend(logprobs)
                step.side.append(self._sides.pop(key))
                num_logprobs += sum(1 + len(one.top_ids) for one in logprobs)
            handles.append(key[0])
            choices.append(key[1])
            firsts.append(first)
            step.ids.extend(ids)
            counts.append(len(ids))
        return counts

    def _take_sides(self, step: worker_pb2.Step) -> None:
        num_bytes = 0
        for key in list(self._sides):
            if len(step.side) >= MAX_FRAME_ENTRIES or num_bytes >= MAX_FRAME_VECTOR_BYTES:
                break
            if key not in self._tokens:
                num_bytes += len(self._sides[key].finish.vector)
                step.side.append(self._sides.pop(key))

    def _side(self, key: Key) -> worker_pb2.StepSide:
        side = self._sides.get(key)
        if side is None:
            side = self._sides[key] = worker_pb2.StepSide(handle=key[0], choice=key[1])
        return side
