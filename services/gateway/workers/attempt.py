"""One attempt of one request on one decode worker: the events that arrived and were not taken yet.

The link's reader puts events in and never waits; the request's own task takes them out. The
buffer is bounded by the credit that the gateway gave: a worker that sends more breaks the
protocol and loses the attempt (workers/output_progress.py).

A stream that is lost and resumed is only a pause here (workers/worker_link.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from baton.wire.engine_time import add_time
from baton.wire.failures import BatonError, DeadlineExceeded, from_wire
from baton.wire.v1 import failure_pb2, worker_pb2
from services.gateway.workers.output_progress import OutputProgress


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of one choice, in order; logprobs where they were asked for."""

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


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """The names of an attempt: its handle on its link; its request, epoch and model."""

    handle: int
    request_id: str
    epoch: int
    model_fp: str


class Wakeup:
    """Lets one task wait until another one wakes it, at the price of one future.

    A token comes every few milliseconds and the timeout almost never fires. So the timer is left
    running from one wait to the next, and looks at the deadline of the current one when it fires.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    async def wait(self, timeout_s: float) -> None:
        """Wait for `wake`. Raises DeadlineExceeded."""
        self._deadline_s = self._clock.now() + timeout_s
        if self._timer is None or self._timer_due_s > self._deadline_s:
            self._set_timer(timeout_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the task go on, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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


class Attempt:
    """One attempt, created by WorkerLink.submit. Only one task calls `events`.

    Methods named `take_...` are for the link's reader.
    """

    def __init__(
        self,
        submit: worker_pb2.Submit,
        clock: Clock,
        *,
        give: Callable[["Attempt", int, int], None],
        cancel: Callable[["Attempt", int | None], None],
    ) -> None:
        self.key = AttemptKey(submit.handle, submit.request_id, submit.epoch, submit.model_fp)
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

    async def events(self, timeout_s: float) -> list[AttemptEvent]:
        """Wait for events; returns all that arrived since the last call, or none after `poke`.

        Raises the attempt's failure once the buffer is empty, DeadlineExceeded when nothing
        arrives in time.
        """
        if not self._buffer and self.failure is None and not self._is_poked:
            await self._wakeup.wait(timeout_s)
        self._is_poked = False
        if not self._buffer and self.failure is not None:
            raise self.failure
        buffer, self._buffer = self._buffer, []
        return buffer

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
        if self._wants_prompt_logprobs and not self.ended:
            self._add(PromptLogprobs(logprobs))

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
                self._add(Tokens(choice, ids, logprobs))
        except BatonError as error:
            self.abandon(error)

    def take_side(self, side: worker_pb2.StepSide) -> None:
        """Add a prefill's summary, or end a choice."""
        add_time(self.spent, side.finish.engine)
        if side.choice >= self._output.num_choices or self.failure is not None:
            return
        if side.HasField("prefill"):
            self._add(Prefilled(side.choice, side.prefill))
        if side.HasField("finish"):
            if side.finish.HasField("failure"):
                self.fail(from_wire(side.finish.failure))
                return
            self._output.finished.add(side.choice)
            self._add(Finished(side.choice, side.finish))

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

    def _add(self, event: AttemptEvent) -> None:
        self._buffer.append(event)
        self._wakeup.wake()
