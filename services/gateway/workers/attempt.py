"""One attempt of one request on one decode worker: what has arrived and is not yet taken.

The link's reader puts things in and never waits; the request's own task takes them out. The
buffer is bounded by the credit that the gateway gave: a worker that sends more breaks the
protocol and loses the attempt. Only the next index of a choice is accepted, so no token is ever
doubled or skipped. Indexes count a choice's output tokens over all attempts of its request.

A stream that is lost and resumed is nothing but a pause here (worker_link.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.wire.failures import (
    BatonError,
    DeadlineExceeded,
    InternalFailure,
    Unavailable,
    from_wire,
)
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import worker_pb2
from services.gateway import instruments


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of one choice, in order; logprobs where they were asked for."""

    choice: int
    ids: list[int]
    logprobs: Sequence[worker_pb2.TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """Logprobs of the next prompt tokens; all come before the first token of choice 0."""

    logprobs: Sequence[worker_pb2.TokenLogprobs]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Comes with the first token of a choice."""

    choice: int
    summary: worker_pb2.PrefillSummary


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker ended a choice by itself: stop, length or cancelled."""

    choice: int
    finish: worker_pb2.Finish


Arrival = Tokens | Judged | Prefilled | Finished


class Attempt:
    """Created by WorkerLink.submit; `arrivals` is called by one task only."""

    def __init__(
        self,
        submit: worker_pb2.Submit,
        *,
        give: Callable[["Attempt", int, int], None],
        cancel: Callable[["Attempt", int | None], None],
    ) -> None:
        self.handle = submit.handle
        self.request_id = submit.request_id
        self.model_fp = submit.model_fp
        self.epoch = submit.epoch
        self.num_choices = submit.sampling.num_choices
        self._is_judged = submit.sampling.num_prompt_logprobs >= 0
        # Refused or lost: the worker did no work that the client saw.
        self.failure: BatonError | None = None
        self._give_on_link = give
        self._cancel_on_link = cancel
        self._first_index = _first_indexes(submit)
        self._next_index = list(self._first_index)
        self._credit = [first + submit.initial_credit_tokens for first in self._first_index]
        self._finished = set(submit.ended_choices)
        self._max_tokens = submit.sampling.max_tokens
        self._first_token_s: float | None = None
        self._buffer: list[Arrival] = []
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._poked = False
        self._wait_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    @property
    def ended(self) -> bool:
        """The worker owes nothing more."""
        return self.failure is not None or len(self._finished) == self.num_choices

    @property
    def num_received(self) -> int:
        """Tokens of all choices that this attempt brought."""
        return sum(self._next_index) - sum(self._first_index)

    def left_s(self) -> float | None:
        """Seconds that its open choices take at most at the pace so far; None while it has none."""
        num_gaps = max(map(int.__sub__, self._next_index, self._first_index)) - 1
        if self._first_token_s is None or num_gaps < 1:
            return None
        gap_s = (self._loop.time() - self._first_token_s) / num_gaps
        open_choices = set(range(self.num_choices)) - self._finished
        ahead = min((self._next_index[choice] for choice in open_choices), default=self._max_tokens)
        return gap_s * (self._max_tokens - ahead)

    async def arrivals(self, timeout_s: float) -> list[Arrival]:
        """Everything that arrived since the last call; empty after `poke`.

        Raises the attempt's failure once the buffer is empty; DeadlineExceeded when nothing
        arrives in time.
        """
        if not self._buffer and self.failure is None and not self._poked:
            await self._wait(timeout_s)
        self._poked = False
        if not self._buffer and self.failure is not None:
            raise self.failure
        buffer, self._buffer = self._buffer, []
        return buffer

    async def drained(self, timeout_s: float) -> None:
        """Wait until the worker owes nothing more, or for `timeout_s`."""
        deadline_s = self._loop.time() + timeout_s
        while not self.ended:
            try:
                await self._wait(deadline_s - self._loop.time())
            except DeadlineExceeded:
                return

    def give(self, choice: int, up_to_index: int) -> None:
        """Let the worker emit up to this output index (exclusive)."""
        self._credit[choice] = up_to_index
        self._give_on_link(self, choice, up_to_index)

    def cancel(self, choice: int | None = None) -> None:
        """Tell the worker to stop and free everything, or one choice and what it alone holds."""
        if choice not in self._finished:
            self._cancel_on_link(self, choice)

    def poke(self) -> None:
        """Let this or the next call of `arrivals` return even though nothing arrived."""
        self._poked = True
        self._wake()

    def release(self) -> None:
        """The request is over; nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    def take_judged(self, logprobs: Sequence[worker_pb2.TokenLogprobs]) -> None:
        """From the link's reader. Bounded by the prompt: whoever asked checks the indexes."""
        if self._is_judged and not self.ended:
            self._add(Judged(logprobs))

    def take_tokens(
        self,
        choice: int,
        first_index: int,
        ids: list[int],
        logprobs: Sequence[worker_pb2.TokenLogprobs] = (),
    ) -> None:
        """From the link's reader."""
        if choice >= self.num_choices or self.ended:
            return
        expected = self._next_index[choice]
        if first_index != expected:
            self._reject_index(first_index, expected, len(ids))
            return
        if expected + len(ids) > self._credit[choice]:
            self.abandon(InternalFailure("the worker sent more tokens than it had credit for"))
            return
        self._next_index[choice] = expected + len(ids)
        if self._first_token_s is None:
            self._first_token_s = self._loop.time()
        self._add(Tokens(choice, ids, logprobs))

    def take_side(self, side: worker_pb2.StepSide) -> None:
        """From the link's reader."""
        if side.choice >= self.num_choices or self.failure is not None:
            return
        if side.HasField("prefill"):
            self._add(Prefilled(side.choice, side.prefill))
        if side.HasField("finish"):
            if side.finish.HasField("failure"):
                self.fail(from_wire(side.finish.failure))
                return
            self._finished.add(side.choice)
            self._add(Finished(side.choice, side.finish))

    def abandon(self, error: BatonError) -> None:
        """This side gives up: the worker is told to stop, the attempt fails with `error`."""
        self.cancel()
        self.fail(error)

    def fail(self, error: BatonError) -> None:
        """The attempt is over: refused, lost or broken. The first failure stands."""
        if not self.ended:
            self.failure = error
        self._wake()

    def _reject_index(self, first: int, expected: int, count: int) -> None:
        # A repeat is dropped. A gap is a worker's error, which asking again would not mend: what
        # a broken stream loses is noticed below, and sent again (baton/runtime/resumable_link.py).
        cause = "gap" if first > expected else "repeat"
        instruments.GATEWAY_DROPPED_ENTRIES.labels(cause).inc()
        if first > expected:
            self.abandon(
                Unavailable(
                    f"tokens {expected} to {first} never arrived ({count} after them did)",
                    reason="worker_lost",
                )
            )

    def _add(self, arrival: Arrival) -> None:
        self._buffer.append(arrival)
        self._wake()

    async def _wait(self, timeout_s: float) -> None:
        """Until something changes. Raises DeadlineExceeded.

        A token comes every few milliseconds and the timeout almost never fires, so the timer is
        left running from one wait to the next and looks at `_wait_until_s` when it fires.
        """
        self._wait_until_s = self._loop.time() + timeout_s
        if self._timer is None or self._timer_due_s > self._wait_until_s:
            self._set_timer()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = self._wait_until_s
        self._timer = self._loop.call_at(self._timer_due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._wait_until_s:
            self._set_timer()
        else:
            self._waiter.set_exception(DeadlineExceeded("no token came in time"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _first_indexes(submit: worker_pb2.Submit) -> list[int]:
    """By choice: the output tokens that earlier attempts brought."""
    first = [0] * submit.sampling.num_choices
    for emitted in submit.emitted:
        first[emitted.choice] = len(emitted.token_ids) // TOKEN_BYTES
    return first
