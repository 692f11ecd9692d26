"""One attempt of one request on one decode worker: the events that arrived and were not taken yet.

The link's reader puts events in and never waits; the request's own task takes them out, or its
`PassOn` does so at the end of the frame, in the reader's turn, while that task waits (decision
0054). The buffer is bounded by the credit that the gateway gave: a worker that sends more breaks
the protocol and loses the attempt.

A stream that is lost and resumed is only a pause here (workers/worker_link.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.engine_time import add_time
from baton.wire.failures import (
    BatonError,
    DeadlineExceeded,
    InternalFailure,
    Unavailable,
    from_wire,
)
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import failure_pb2, worker_pb2
from services.gateway import instruments


@dataclass(slots=True)
class Tokens:
    """New tokens of one choice, in order; logprobs where they were asked for. Not frozen, as
    Delta."""

    choice: int
    ids: list[int]
    logprobs: Sequence[worker_pb2.TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of the next prompt tokens; all come before the first token of choice 0."""

    logprobs: Sequence[worker_pb2.TokenLogprobs]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The worker's summary of the prefill, which comes with the first token of a choice."""

    choice: int
    summary: worker_pb2.PrefillSummary


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker ended a choice by itself: stop, length or cancelled."""

    choice: int
    finish: worker_pb2.Finish


AttemptEvent = Tokens | PromptLogprobs | Prefilled | Finished

# Takes the events that are there, at this time, without waiting. Returns the time by which the next
# must come, or None when the request's task has to go on.
PassOn = Callable[[float], float | None]


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """The names of an attempt: its handle on its link; its request, epoch, model and adapter."""

    handle: int
    request_id: str
    epoch: int
    model_fp: str
    adapter: str = ""


class Wakeup:
    """Lets one task wait until another one wakes it, at the price of one future.

    A token comes every few milliseconds and the timeout almost never fires. So the timer is left
    running from one wait to the next, and looks at the deadline of the current one when it fires.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    async def wait(self, timeout_s: float) -> None:
        """Wait for `wake`. Raises DeadlineExceeded, and what was raised for this task."""
        self._deadline_s = self._clock.now() + timeout_s
        if self._timer is None or self._timer_due_s > self._deadline_s:
            self._set_timer(timeout_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            error, self._error = self._error, None
        if error is not None:
            raise error

    def wake(self) -> None:
        """Let the task go on, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_waited_for(self) -> bool:
        """True while the task waits and nothing has woken it."""
        return self._waiter is not None and not self._waiter.done()

    def put_off(self, deadline_s: float) -> None:
        """Let the current wait take until then, which is no earlier than it was."""
        self._deadline_s = deadline_s

    def __enter__(self) -> None:
        """Let what is raised from here on be raised in the task that waits."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._error = error
        self.wake()
        return True

    def release(self) -> None:
        """Stop the timer for good: there will be no more waits."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, delay_s: float) -> None:
        self.release()
        self._timer_due_s = self._deadline_s
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left_s = self._deadline_s - self._clock.now()
        if left_s > 0:
            self._set_timer(left_s)
        else:
            self._waiter.set_exception(DeadlineExceeded("no token came in time"))


class OutputProgress:
    """The next output index and the credit of each choice.

    Only the next index of a choice is accepted, so no token is ever doubled or skipped. Indexes
    count a choice's output tokens over all attempts of its request.
    """

    def __init__(self, submit: worker_pb2.Submit, clock: Clock) -> None:
        self.num_choices = submit.sampling.num_choices
        self.finished = set(submit.ended_choices)
        self._max_tokens = submit.sampling.max_tokens
        self._first_index = _first_indexes(submit)
        self._next_index = list(self._first_index)
        self._credit = [first + submit.initial_credit_tokens for first in self._first_index]
        self._clock = clock
        self._first_token_s: float | None = None

    @property
    def num_received(self) -> int:
        """The number of tokens, over all choices, that this attempt brought."""
        return sum(self._next_index) - sum(self._first_index)

    def give(self, choice: int, up_to_index: int) -> None:
        """Let the choice come to this output index (exclusive)."""
        self._credit[choice] = up_to_index

    def advance(self, choice: int, first_index: int, num_tokens: int) -> bool:
        """Take in the next tokens of a choice; False when they have come before.

        Raises Unavailable when tokens before them are missing, InternalFailure when the worker has
        no credit for them.
        """
        expected = self._next_index[choice]
        if first_index != expected:
            _reject(first_index, expected, num_tokens)
            return False
        if expected + num_tokens > self._credit[choice]:
            raise InternalFailure("the worker sent more tokens than it had credit for")
        self._next_index[choice] = expected + num_tokens
        if self._first_token_s is None:
            self._first_token_s = self._clock.now()
        return True

    def left_s(self) -> float | None:
        """Seconds that the open choices take at most at their pace; None while it is not known."""
        num_gaps = max(map(int.__sub__, self._next_index, self._first_index)) - 1
        if self._first_token_s is None or num_gaps < 1:
            return None
        gap_s = (self._clock.now() - self._first_token_s) / num_gaps
        open_choices = set(range(self.num_choices)) - self.finished
        ahead = min((self._next_index[choice] for choice in open_choices), default=self._max_tokens)
        return gap_s * (self._max_tokens - ahead)


class Attempt:
    """One attempt, created by WorkerLink.submit. Only one task calls `events`.

    Methods named `take_...` are for the link's reader, which calls `end_frame` after them.
    """

    def __init__(
        self,
        submit: worker_pb2.Submit,
        clock: Clock,
        *,
        give: Callable[["Attempt", int, int], None],
        cancel: Callable[["Attempt", int | None], None],
    ) -> None:
        self.key = AttemptKey(
            submit.handle, submit.request_id, submit.epoch, submit.model_fp, submit.adapter
        )
        self._clock = clock
        # Why the worker refused or lost the attempt; the first failure stands.
        self.failure: BatonError | None = None
        # What the worker has told that the attempt cost.
        self.spent = failure_pb2.EngineTime()
        self._wants_prompt_logprobs = submit.sampling.num_prompt_logprobs >= 0
        self._output = OutputProgress(submit, clock)
        self._give_on_link = give
        self._cancel_on_link = cancel
        self._buffer: list[AttemptEvent] = []
        self._pass_on: PassOn | None = None
        self._is_poked = False
        self._wakeup = Wakeup(clock)

    @property
    def ended(self) -> bool:
        """True once the worker owes nothing more."""
        output = self._output
        return self.failure is not None or len(output.finished) == output.num_choices

    @property
    def num_received(self) -> int:
        """The number of tokens, over all choices, that this attempt brought."""
        return self._output.num_received

    def left_s(self) -> float | None:
        """Seconds that its open choices take at most at their pace; None while it is not known."""
        return self._output.left_s()

    async def events(self, timeout_s: float, pass_on: PassOn | None = None) -> list[AttemptEvent]:
        """Wait for events; returns all that arrived since the last call, or none after `poke` and
        when `pass_on` has taken them. Raises what that raised.

        Raises the attempt's failure once the buffer is empty, DeadlineExceeded when nothing
        arrives in time.
        """
        if not self._buffer and self.failure is None and not self._is_poked:
            self._pass_on = pass_on
            try:
                await self._wakeup.wait(timeout_s)
            finally:
                self._pass_on = None
        was_poked, self._is_poked = self._is_poked, False
        if not self._buffer and self.failure is not None and not was_poked:
            raise self.failure
        return self.take_events()

    def take_events(self) -> list[AttemptEvent]:
        """The events that are there."""
        buffer, self._buffer = self._buffer, []
        return buffer

    def end_frame(self, now_s: float) -> None:
        """Hand on what a frame brought, or wake the task that waits for it."""
        if self._pass_on is None or not self._wakeup.is_waited_for or self.failure is not None:
            self._wakeup.wake()
            return
        with self._wakeup:
            deadline_s = self._pass_on(now_s)
            if deadline_s is None:
                # It has events to deliver, before any failure is raised.
                self.poke()
            else:
                self._wakeup.put_off(deadline_s)

    async def drained(self, timeout_s: float) -> None:
        """Wait until the worker owes nothing more, or for `timeout_s`."""
        deadline_s = self._clock.now() + timeout_s
        while not self.ended:
            try:
                await self._wakeup.wait(deadline_s - self._clock.now())
            except DeadlineExceeded:
                return

    def give(self, choice: int, up_to_index: int) -> None:
        """Let the worker emit up to this output index (exclusive)."""
        self._output.give(choice, up_to_index)
        self._give_on_link(self, choice, up_to_index)

    def cancel(self, choice: int | None = None) -> None:
        """Let the worker stop and free the whole attempt, or one choice and its own blocks."""
        if choice not in self._output.finished:
            self._cancel_on_link(self, choice)

    def poke(self) -> None:
        """Let this or the next call of `events` return even though nothing arrived."""
        self._is_poked = True
        self._wakeup.wake()

    def release(self) -> None:
        """Stop waiting for good: the request is over."""
        self._wakeup.release()

    def take_prompt_logprobs(self, logprobs: Sequence[worker_pb2.TokenLogprobs]) -> None:
        """Add logprobs of the prompt, whose length bounds them: PromptEcho checks the indexes."""
        if logprobs and self._wants_prompt_logprobs and not self.ended:
            self._buffer.append(PromptLogprobs(logprobs))

    def take_tokens(
        self,
        choice: int,
        first_index: int,
        ids: list[int],
        logprobs: Sequence[worker_pb2.TokenLogprobs] = (),
    ) -> None:
        """Add new tokens of one choice; those that came before are dropped."""
        if choice >= self._output.num_choices or self.ended:
            return
        try:
            if self._output.advance(choice, first_index, len(ids)):
                self._buffer.append(Tokens(choice, ids, logprobs))
        except BatonError as error:
            self.abandon(error)

    def take_side(self, side: worker_pb2.StepSide) -> None:
        """Add a prefill's summary, or end a choice."""
        add_time(self.spent, side.finish.engine)
        if side.choice >= self._output.num_choices or self.failure is not None:
            return
        if side.HasField("prefill"):
            self._buffer.append(Prefilled(side.choice, side.prefill))
        if side.HasField("finish"):
            if side.finish.HasField("failure"):
                self.fail(from_wire(side.finish.failure))
                return
            self._output.finished.add(side.choice)
            self._buffer.append(Finished(side.choice, side.finish))

    def take_refusal(self, refused: worker_pb2.Refused) -> None:
        """End the attempt: nothing comes of it."""
        add_time(self.spent, refused.engine)
        self.fail(from_wire(refused.failure))

    def abandon(self, error: BatonError) -> None:
        """Give up from this side: cancel at the worker, and fail with `error`."""
        self.cancel()
        self.fail(error)

    def fail(self, error: BatonError) -> None:
        """End the attempt: it was refused, lost or broken. The first failure stands."""
        if not self.ended:
            self.failure = error
        self._wakeup.wake()


def _reject(first: int, expected: int, num_tokens: int) -> None:
    # A repeat is dropped. A gap is a worker's error, and no second request would mend it: the link
    # notices the frames that a broken stream lost, and they are sent again
    # (baton/runtime/resumable_link.py).
    is_gap = first > expected
    cause = instruments.DropCause.GAP if is_gap else instruments.DropCause.REPEAT
    instruments.GATEWAY_DROPPED_ENTRIES.labels(cause).inc()
    if is_gap:
        raise Unavailable(
            f"tokens {expected} to {first} never arrived ({num_tokens} after them did)",
            reason="worker_lost",
        )


def _first_indexes(submit: worker_pb2.Submit) -> list[int]:
    """The number of output tokens that earlier attempts brought, by choice."""
    first = [0] * submit.sampling.num_choices
    for emitted in submit.emitted:
        first[emitted.choice] = len(emitted.token_ids) // TOKEN_BYTES
    return first
