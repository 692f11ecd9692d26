"""Reports to the front: all that has happened since the last report, and the load."""

from baton.engine.protocol.messages import EngineLoad, StepEvents
from baton.engine.protocol.runner import Runner, StagingRunner
from baton.engine.step.engine_state import EngineState
from baton.engine.step.report_queue import ReportQueue
from baton.engine.step.step_timer import StepTimer


class StepReporter:
    """Makes one engine's reports; they leave in order, through the `queue`."""

    def __init__(self, state: EngineState, timer: StepTimer, runner: Runner) -> None:
        self.queue = ReportQueue(runner if isinstance(runner, StagingRunner) else None)
        self._state = state
        self._timer = timer

    @property
    def has_answers(self) -> bool:
        """Something has happened that the front need not wait for until the step has run."""
        events = self._state.events
        answers = (events.admitted, events.refused, events.bound, events.started, events.finished)
        return any(answers) or bool(events.freed or events.token_ids)

    @property
    def next_poll_s(self) -> float | None:
        """In how many seconds a report could leave; None = not before the next step or command."""
        device = self._state.device
        waits = (None if device is None else device.next_poll_s, self.queue.next_poll_s)
        return min((wait for wait in waits if wait is not None), default=None)

    def report(self, step: int) -> StepEvents | None:
        """Close the report of step `step` if anything has happened; returns what may leave now."""
        state, events = self._state, self._state.events
        nothing = StepEvents(step, events.load)
        events.step = step
        if state.device is not None:
            events.pages_read = state.device.poll()
        events.removed_hashes, events.stored = state.manager.take_kv_events()
        left = state.manager.take_left()
        events.left_seq_ids, events.left_block_us = list(left), list(left.values())
        if state.wants_snapshot:
            events.snapshot = state.manager.snapshot()
            state.wants_snapshot = False
        events.load = self.measure_load()
        state.events = StepEvents(step, events.load)
        if events != nothing:
            events.num_cached_hashes, events.cache_digest = state.manager.cache_digest
            events.busy_us = self._timer.shares.take_busy_us()
            self.queue.put(events)
        return self.queue.take()

    def measure_load(self) -> EngineLoad:
        """The engine's load between two steps."""
        state, meter, chunks = self._state, self._timer.meter, self._timer.chunks
        queues = state.scheduler.load()
        return EngineLoad(
            num_running=queues.num_running,
            num_waiting=queues.num_waiting,
            num_blocks_free=state.manager.num_free_blocks,
            num_blocks_promised=state.manager.num_promised_blocks,
            num_queued_prefill_tokens=queues.num_prefill_tokens,
            prefill_tokens_per_s=meter.prefill_tokens_per_s,
            decode_step_s=meter.decode_step_s,
            num_not_started=state.sequences.num_not_started,
            num_parked=queues.num_parked,
            chunk_tokens=chunks.allowed_tokens(max(1, queues.num_running), may_lengthen=False),
            num_rows_free=state.manager.rows.leases.num_free,
        )
