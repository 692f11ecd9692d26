"""One request's tokens -> text for the client, with credit following what the client accepts.

Follows one attempt after the other; choices, text and credit simply go on. Ends when every choice
has ended: by the worker (stop, length), by a stop string, or because quota grants no more tokens.
Knows nothing of how an attempt came about.
"""

from collections.abc import Awaitable, Callable

from baton.system.clock import Clock
from baton.wire.failures import Unavailable
from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import Delta
from services.gateway.text.choice_text import ChoiceText
from services.gateway.text.prompt_echo import PromptEcho
from services.gateway.workers.attempt import Arrival, Attempt, Finished, Judged, Prefilled, Tokens
from services.gateway.workers.credit import CreditMeter

# A cancelled attempt's last tokens are waited for this long, only to count them.
DRAIN_S = 0.05

Deliver = Callable[[list[Delta]], Awaitable[None]]


class AnswerStream:
    """`follow` each attempt, await its `first` token, then `run`. `echo` precedes every choice."""

    def __init__(
        self,
        meter: CreditMeter,
        choices: list[ChoiceText],
        clock: Clock,
        echo: PromptEcho | None = None,
    ) -> None:
        self._meter = meter
        self._choices = choices
        self._clock = clock
        self._echo = echo
        self._attempt: Attempt | None = None
        # Taken in and not delivered yet.
        self._batch: list[Delta] = []
        self._is_echoed = echo is None
        # By choice, of the current attempt; see Progress.num_cached.
        self.num_cached: dict[int, int] = {}
        # The worker's own stages up to the first token of choice 0, in seconds.
        self.prefill_stages: dict[str, float] = {}

    @property
    def has_open_choices(self) -> bool:
        return any(choice.finish_reason is None for choice in self._choices)

    def follow(self, attempt: Attempt) -> None:
        """A new attempt begins behind what the choices have."""
        self._attempt = attempt
        self.num_cached = {}
        if self._echo is not None:
            self._echo.restart()

    async def first(self, timeout_s: float) -> None:
        """Wait for the attempt's first token and what goes before it. Raises its failure, and
        DeadlineExceeded."""
        attempt, deadline = self._followed, self._clock.now() + timeout_s
        while self.has_open_choices and not (attempt.num_received and self._has_echo):
            arrivals = await attempt.arrivals(deadline - self._clock.now())
            self._take(arrivals)
            if any(isinstance(arrival, Judged) for arrival in arrivals):
                # A long prompt is being read, in small steps.
                deadline = self._clock.now() + timeout_s
        self.end_starved()

    @property
    def _followed(self) -> Attempt:
        assert self._attempt is not None, "followed first"
        return self._attempt

    @property
    def _has_echo(self) -> bool:
        return self._echo is None or self._echo.is_complete

    async def run(self, deliver: Deliver, gap_s: float) -> None:
        """Deliver what there is and everything that comes, until all choices have ended. `gap_s`:
        the longest wait between tokens. Raises as `first` does, with nothing left to deliver."""
        while True:
            await self.flush(deliver)
            if not self.has_open_choices:
                return
            self._take(await self._followed.arrivals(gap_s))

    async def flush(self, deliver: Deliver) -> None:
        """Deliver what was taken in, however its attempt went on."""
        batch, self._batch = self._batch, []
        if not self._is_echoed:
            assert self._echo is not None, "it was awaited"
            self._is_echoed = True
            batch = [*(self._echo.delta(choice.choice) for choice in self._choices), *batch]
        if batch:
            await deliver(batch)
        for choice in self._choices:
            self._meter.accepted(choice.choice, choice.num_received)

    async def close(self) -> None:
        """Stop the worker if it is not done, and wait for what it still sends, to count it."""
        attempt = self._followed
        if not attempt.ended:
            attempt.cancel()
            await attempt.drained(DRAIN_S)

    def end_starved(self) -> None:
        """End the choices that quota grants no more tokens."""
        for choice in self._choices:
            if choice.finish_reason is None and self._meter.starved(
                choice.choice, choice.num_received
            ):
                self._batch.append(choice.finish("length"))
                self._end_early(choice)

    def _take(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            choice = self._choices[arrival.choice]
            if isinstance(arrival, Tokens):
                self._take_tokens(choice, arrival)
            elif isinstance(arrival, Judged):
                if self._echo is not None:
                    self._echo.take(arrival.logprobs)
            elif isinstance(arrival, Prefilled):
                self._take_prefill(choice.choice, arrival.summary)
            elif choice.finish_reason is None:
                self._finish(choice, arrival)
        self.end_starved()

    def _take_prefill(self, choice: int, summary: worker_pb2.PrefillSummary) -> None:
        self.num_cached[choice] = summary.num_cached_tokens
        if choice == 0:
            self.prefill_stages = {s.name: s.duration_us / 1e6 for s in summary.stages}

    def _take_tokens(self, choice: ChoiceText, tokens: Tokens) -> None:
        delta = choice.take(tokens.ids, tokens.logprobs)
        if delta is None:
            return
        self._batch.append(delta)
        if delta.finish_reason is not None:
            self._end_early(choice)

    def _finish(self, choice: ChoiceText, arrival: Finished) -> None:
        reason = arrival.finish.reason
        if reason == "stop":
            self._batch.append(choice.finish("stop"))
        elif reason == "length":
            self._batch.append(choice.finish("length"))
        else:
            raise Unavailable(f"the worker ended with {reason!r}", reason="worker_lost")
        self._meter.end_choice(choice.choice, choice.num_received)

    def _end_early(self, choice: ChoiceText) -> None:
        """The worker would go on with it; it must not, even while others go on."""
        self._meter.end_choice(choice.choice, choice.num_received)
        if self.has_open_choices and self._attempt is not None:
            self._attempt.cancel(choice.choice)
