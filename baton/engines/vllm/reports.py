"""Reports of vLLM's engine to the front: what has happened since the last one, and the load."""

from collections.abc import Callable

from baton.engine.protocol.messages import StepEvents
from baton.engine.step.report_queue import ReportQueue
from baton.engines.vllm.departures import Departures
from baton.engines.vllm.pace import StepPace, load_of
from baton.engines.vllm.state import VllmState, empty_events
from baton.engines.vllm.stats import StatsBook


class Reports:
    """Those of one engine; each leaves when the copies have ended that were begun before it."""

    def __init__(
        self, state: VllmState, departures: Departures, stats: StatsBook, pace: StepPace
    ) -> None:
        self.wants_snapshot = False
        self._state = state
        self._departures = departures
        self._stats = stats
        self._pace = pace
        self._queue = ReportQueue(state.core.model_executor)

    @property
    def next_poll_s(self) -> float | None:
        """In how many seconds a report could leave; None = not before the next one."""
        return self._queue.next_poll_s

    def report(self, step: int, num_to_run: int, send: Callable[[StepEvents], None]) -> None:
        """Close the report of step `step` if anything has happened, and send those that may leave.
        So many choices wait for their leaders besides."""
        state, events = self._state, self._state.events
        self._departures.report()
        state.cache.report(events)
        nothing = empty_events(step)
        state.cache.report(nothing)
        if self.wants_snapshot:
            self.wants_snapshot, events.snapshot = False, state.cache.snapshot()
        state.bill.report(events)
        if events != nothing:
            events.step = step
            seqs = list(state.seqs.values())
            events.load = load_of(state.scheduler, seqs, self._pace)
            events.load.num_waiting += num_to_run
            events.load.num_rows_free = state.rows.num_free
            events.vllm = self._stats.take(seqs)
            state.events = empty_events(step)
            self._queue.put(events)
        while (told := self._queue.take()) is not None:
            send(told)
