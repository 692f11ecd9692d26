"""One attempt's tokens -> text for the client, with credit following what the client accepts.

Ends when every choice has ended: by the worker (stop, length), by a stop string, or because quota
grants no more tokens. Knows nothing of how the attempt came about.
"""

from collections.abc import Awaitable, Callable

from baton.system.clock import Clock
from baton.wire.failures import Unavailable
from baton.wire.v1 import worker_pb2
from services.gateway.attempt import Arrival, Attempt, Finished, Judged, Prefilled, Tokens
from services.gateway.choice_text import ChoiceText
from services.gateway.credit import CreditMeter
from services.gateway.generation import Delta
from services.gateway.prompt_echo import PromptEcho

# A cancelled attempt's last tokens are waited for this long, only to count them.
DRAIN_S = 0.05

Deliver = Callable[[list[Delta]], Awaitable[None]]


class AnswerStream:
    """Drives one attempt to its end. `run` once. `echo` comes before every choice."""

    def __init__(
        self,
        attempt: Attempt,
        meter: CreditMeter,
        choices: list[ChoiceText],
        clock: Clock,
        echo: PromptEcho | None = None,
    ) -> None:
        self._attempt = attempt
        self._meter = meter
        self._choices = choices
        self._clock = clock
        self._echo = echo
        # By choice; see Progress.num_cached.
        self.num_cached: dict[int, int] = {}
        # The worker's own stages up to the first token of choice 0, in seconds.
        self.prefill_stages: dict[str, float] = {}

    @property
    def has_open_choices(self) -> bool:
        return any(choice.finish_reason is None for choice in self._choices)

    async def first(self, timeout_s: float) -> list[Delta]:
        """Wait for the first token and what goes before it; the text that came with them."""
        deadline = self._clock.now() + timeout_s
        batch: list[Delta] = []
        while self.has_open_choices and not (self._attempt.num_received and self._has_echo):
            arrivals = await self._attempt.arrivals(deadline - self._clock.now())
            batch += self._take(arrivals)
            if any(isinstance(arrival, Judged) for arrival in arrivals):
                # A long prompt is being read, in small steps.
                deadline = self._clock.now() + timeout_s
        batch = batch or self._take([])
        if self._echo is None:
            return batch
        return [*(self._echo.delta(choice.choice) for choice in self._choices), *batch]

    @property
    def _has_echo(self) -> bool:
        return self._echo is None or self._echo.is_complete

    async def run(self, batch: list[Delta], deliver: Deliver, gap_s: float) -> None:
        """Deliver `batch` and everything after it. `gap_s`: the longest wait between tokens."""
        while True:
            if batch:
                await deliver(batch)
            for choice in self._choices:
                self._meter.accepted(choice.choice, choice.num_received)
            if not self.has_open_choices:
                return
            batch = self._take(await self._attempt.arrivals(gap_s))

    async def close(self) -> None:
        """Stop the worker if it is not done, and count what it still sent."""
        if not self._attempt.ended:
            self._attempt.cancel()
            await self._attempt.drained(DRAIN_S)

    def _take(self, arrivals: list[Arrival]) -> list[Delta]:
        batch: list[Delta] = []
        for arrival in arrivals:
            choice = self._choices[arrival.choice]
            if isinstance(arrival, Tokens):
                batch += self._take_tokens(choice, arrival)
            elif isinstance(arrival, Judged):
                if self._echo is not None:
                    self._echo.take(arrival.logprobs)
            elif isinstance(arrival, Prefilled):
                self._take_prefill(choice.choice, arrival.summary)
            elif choice.finish_reason is None:
                batch.append(self._finish(choice, arrival))
        return batch + self._end_starved()

    def _take_prefill(self, choice: int, summary: worker_pb2.PrefillSummary) -> None:
        self.num_cached[choice] = summary.num_cached_tokens
        if choice == 0:
            self.prefill_stages = {s.name: s.duration_us / 1e6 for s in summary.stages}

    def _take_tokens(self, choice: ChoiceText, tokens: Tokens) -> list[Delta]:
        delta = choice.take(tokens.ids, tokens.logprobs)
        if delta is None:
            return []
        if delta.finish_reason is not None:
            self._end_early(choice)
        return [delta]

    def _finish(self, choice: ChoiceText, arrival: Finished) -> Delta:
        reason = arrival.finish.reason
        if reason == "stop":
            delta = choice.finish("stop")
        elif reason == "length":
            delta = choice.finish("length")
        else:
            raise Unavailable(f"the worker ended with {reason!r}", reason="worker_lost")
        self._meter.end_choice(choice.choice, choice.num_received)
        return delta

    def _end_starved(self) -> list[Delta]:
        batch = []
        for choice in self._choices:
            if choice.finish_reason is None and self._meter.starved(
                choice.choice, choice.num_received
            ):
                batch.append(choice.finish("length"))
                self._end_early(choice)
        return batch

    def _end_early(self, choice: ChoiceText) -> None:
        """The worker would go on with it; it must not, even while others go on."""
        self._meter.end_choice(choice.choice, choice.num_received)
        if self.has_open_choices:
            self._attempt.cancel(choice.choice)
