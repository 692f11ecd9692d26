"""One request's tokens as text for the client, with credit that follows what the client accepts.

Follows one attempt after the other; choices, text and credit simply go on. Ends when every choice
has ended: by the worker (stop, length), by a stop string, or because the budget is spent.
Knows nothing of picks and submits.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from baton.system.clock import Clock
from baton.wire.failures import Unavailable
from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import Delta, FinishReason, TokenDetails
from services.gateway.request.incoming import AnswerSink
from services.gateway.request.job import Answer
from services.gateway.request.payment import CreditMeter
from services.gateway.request.reports import Timeline, TokenGaps
from services.gateway.request.trace import RequestTrace
from services.gateway.safety.screen import Screen
from services.gateway.tenants.lease import Lease
from services.gateway.text.choice_text import ChoiceText
from services.gateway.workers.attempt import (
    Attempt,
    AttemptEvent,
    Finished,
    Prefilled,
    PromptLogprobs,
    Tokens,
)

# A cancelled attempt's last tokens are waited for this long, only to count them.
DRAIN_S = 0.05


def _cancel_nothing(choice: int) -> None:
    """Do nothing: before the first attempt no choice runs."""


class Delivery:
    """Hands one answer to its client, with the times at which it happened."""

    def __init__(
        self,
        sink: AnswerSink,
        lease: Lease,
        trace: RequestTrace,
        timeline: Timeline,
        token_gaps: TokenGaps,
    ) -> None:
        self._sink = sink
        self._lease = lease
        self._trace = trace
        self._timeline = timeline
        self._token_gaps = token_gaps

    async def begin(self, worker_stages: Mapping[str, float]) -> None:
        """Start the answer: an attempt's first token is there, or no token will come.
        `worker_stages`: the time that the worker spent up to there, in seconds."""
        if self._timeline.begin(worker_stages):
            await self._sink.started(self._trace.head())

    async def repeat_prompt(self, deltas: Iterable[Delta]) -> None:
        """Send the prompt at the start of each choice, in pieces between which others run."""
        for delta in deltas:
            await self._sink.deltas([delta])
            await asyncio.sleep(0)

    async def deliver(self, deltas: list[Delta], now_s: float) -> None:
        """Send new text, and wait until the client has taken it."""
        self._token_gaps.note(now_s)
        await self._sink.deltas(deltas)

    def offer(self, deltas: list[Delta], now_s: float) -> bool:
        """Send new text if the client takes it at once; True if so."""
        if not self._sink.offer(deltas, now_s):
            return False
        self._token_gaps.note(now_s)
        return True


class AnswerStream:
    """The answer of one request. For each attempt call `follow`, await its `first` token, then
    `run` and `close`."""

    def __init__(
        self, answer: Answer, meter: CreditMeter, delivery: Delivery, clock: Clock
    ) -> None:
        self.answer = answer
        self._meter = meter
        self._delivery = delivery
        self._clock = clock
        # None where nothing is judged.
        self.screen: Screen | None = None
        # Stops one choice of the current attempt.
        self._cancel: Callable[[int], None] = _cancel_nothing
        # The longest wait between tokens, and the end of the current one.
        self._gap_s = self._due_s = 0.0
        # Deltas that were not delivered yet.
        self._batch: list[Delta] = []
        self._is_echoed = False
        # The answer is a vector, and it is there.
        self.has_vector = False
        # By choice, of the current attempt; see RequestUsage.num_cached.
        self.num_cached: dict[int, int] = {}
        # The worker's own stages up to the first token of choice 0, in seconds.
        self._prefill_stages: dict[str, float] = {}

    def follow(self, attempt: Attempt) -> None:
        """Follow a new attempt, which begins behind the tokens that the choices have."""
        self._cancel = attempt.cancel
        self.num_cached = {}
        if self.answer.echo is not None:
            self.answer.echo.restart()

    async def first(self, attempt: Attempt, timeout_s: float) -> None:
        """Wait for the attempt's first token and for the echo before it. Raises its failure, and
        DeadlineExceeded."""
        answer, deadline = self.answer, self._clock.now() + timeout_s
        while answer.has_open_choices and not (attempt.num_received and answer.has_echo):
            events = await attempt.events(deadline - self._clock.now())
            self._take(events)
            if any(isinstance(event, PromptLogprobs) for event in events):
                # A long prompt is being prefilled, in small steps.
                deadline = self._clock.now() + timeout_s
        self.end_starved()

    async def begin(self) -> None:
        """Begin the delivery: the first token is there, or no token will come."""
        await self._delivery.begin(self._prefill_stages)

    async def run(self, attempt: Attempt, gap_s: float) -> None:
        """Deliver the tokens that are there and all that come, until every choice has ended.

        `gap_s`: the longest wait between tokens. Raises as `first` does, with nothing left to
        deliver.
        """
        self._gap_s = gap_s
        while True:
            await self.flush()
            if not self.answer.has_open_choices:
                return
            self._take(await self._next_events(attempt))

    async def _next_events(self, attempt: Attempt) -> list[AttemptEvent]:
        """Wait for events that are not delivered meanwhile; none when there is something else to
        do: quota has granted more, or tokens that the client did not take at once.

        While quota has no room for more it answers often, and the wait goes on.
        """
        pass_on = partial(self._pass_on, attempt)
        self._due_s, num_raises = self._clock.now() + self._gap_s, self._meter.num_raises
        while not (events := await attempt.events(self._due_s - self._clock.now(), pass_on)):
            self.end_starved()
            has_ended = not self.answer.has_open_choices
            if self._batch or has_ended or self._meter.num_raises > num_raises:
                break
        return events

    def _pass_on(self, attempt: Attempt, now_s: float) -> float | None:
        """Deliver the tokens that are there; a PassOn of the attempt."""
        self._take(attempt.take_events())
        if self._batch and (
            self.screen is not None or not self._delivery.offer(self._batch, now_s)
        ):
            return None
        self._batch = []
        for choice in self.answer.choices:
            self._meter.accepted(choice.choice, choice.num_received)
        if not self.answer.has_open_choices:
            return None
        self._due_s = now_s + self._gap_s
        return self._due_s

    async def flush(self) -> None:
        """Deliver the tokens that were taken in, however their attempt went on."""
        batch, self._batch = self._batch, []
        if not self._is_echoed:
            self._is_echoed = True
            await self._delivery.repeat_prompt(self._echoes())
        if batch and self.screen is not None:
            batch = await self._screened(batch, self.screen)
        if batch:
            await self._delivery.deliver(batch, self._clock.now())
        for choice in self.answer.choices:
            self._meter.accepted(choice.choice, choice.num_received)

    async def _screened(self, batch: list[Delta], screen: Screen) -> list[Delta]:
        """The deltas that may be sent; choices that are refused end."""
        were_open = [choice for choice in self.answer.choices if choice.finish_reason is None]
        passed = await screen.passed(batch)
        for choice in were_open:
            if choice.finish_reason is not None:
                self._end_early(choice)
        return passed

    async def close(self, attempt: Attempt) -> None:
        """Stop the worker if it is not done, and wait for its last tokens, to count them."""
        if not attempt.ended:
            attempt.cancel()
            await attempt.drained(DRAIN_S)

    def end_starved(self) -> None:
        """End the choices for which the budget has no more tokens."""
        for choice in self.answer.choices:
            if choice.finish_reason is None and self._meter.starved(
                choice.choice, choice.num_received
            ):
                last = choice.finish(FinishReason.LENGTH)
                self._add(replace(last, spent_budget=self._meter.spent_budget))
                choice.is_unpaid = True
                self._end_early(choice)

    def _echoes(self) -> Iterator[Delta]:
        """The echoes at the start of every choice; none where the prompt is not repeated."""
        if self.answer.echo is not None:
            for each in self.answer.choices:
                yield from self.answer.echo.deltas(each.choice)

    def _take(self, events: list[AttemptEvent]) -> None:
        for event in events:
            choice = self.answer.choices[event.choice]
            if isinstance(event, Tokens):
                self._take_tokens(choice, event)
            elif isinstance(event, PromptLogprobs):
                if self.answer.echo is not None:
                    self.answer.echo.take(event.logprobs)
            elif isinstance(event, Prefilled):
                self._take_prefill(choice.choice, event.summary)
            elif choice.finish_reason is None:
                self._finish(choice, event)
        self.end_starved()

    def _take_prefill(self, choice: int, summary: worker_pb2.PrefillSummary) -> None:
        self.num_cached[choice] = summary.num_cached_tokens
        if choice == 0:
            self._prefill_stages = {s.name: s.duration_us / 1e6 for s in summary.stages}

    def _take_tokens(self, choice: ChoiceText, tokens: Tokens) -> None:
        delta = choice.take(tokens.ids, tokens.logprobs)
        if delta is None:
            return
        self._add(delta)
        if delta.finish_reason is not None:
            self._end_early(choice)

    def _finish(self, choice: ChoiceText, finished: Finished) -> None:
        reason, vector = finished.finish.reason, finished.finish.vector
        if vector:
            self.has_vector = True
            details = TokenDetails(vector=vector)
            self._add(replace(choice.finish(FinishReason.STOP), details=details))
        elif reason == FinishReason.STOP:
            self._add(choice.finish(FinishReason.STOP))
        elif reason == FinishReason.LENGTH:
            self._add(choice.finish(FinishReason.LENGTH))
        else:
            raise Unavailable(f"the worker ended with {reason!r}", reason="worker_lost")
        self._meter.end_choice(choice.choice, choice.num_received)

    def _add(self, delta: Delta) -> None:
        """Deliver this delta next, with the tool calls that its text completes."""
        calls = self.answer.calls
        read = delta if calls is None else calls.read(delta)
        if read is not None:
            self._batch.append(read)

    def _end_early(self, choice: ChoiceText) -> None:
        """End a choice that its worker would go on with, also while other choices go on."""
        self._meter.end_choice(choice.choice, choice.num_received)
        if self.answer.has_open_choices:
            self._cancel(choice.choice)
