"""Plans the next step; before that, applies deadlines and unparks sequences that can go on."""

from baton.engine.grammar.states import POLL_S
from baton.engine.protocol.messages import Progress, Started
from baton.engine.protocol.reasons import FinishReason
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.engine_state import EngineState
from baton.engine.step.parallel_sampling import ParallelSampling
from baton.engine.step.scheduler import Scheduler
from baton.engine.step.speculation import DraftProposer
from baton.engine.step.step_plan import StepPlan
from baton.system.clock import Clock

LOOK_S = 1.0


class ParkedWatch:
    """Takes the blocks of sequences without a reader: parked at two looks, without progress.

    Such a sequence goes back to the queue, where it waits for credit alone. Its full blocks stay in
    the prefix cache until another sequence needs them: a reader that comes back soon costs the
    compute of one block, and one that never does costs no room. A sequence that was parked a moment
    ago keeps its blocks: every reader that is slower than the model looks like that.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._due = 0.0
        # Tokens of the sequences that were parked at the last look.
        self._seen: dict[int, int] = {}

    @property
    def next_look(self) -> float | None:
        """The time of the next look; None while no sequence is parked with blocks."""
        running = self._scheduler.running.snapshot()
        return self._due if any(self._may_take(seq) for seq in running) else None

    def look(self) -> int:
        """Take the blocks that are due, if it is time; returns from how many sequences."""
        now = self._clock.now()
        if now < self._due:
            return 0
        self._due = now + LOOK_S
        before, self._seen, num_taken = self._seen, {}, 0
        for seq in self._scheduler.running.snapshot():
            if not self._may_take(seq):
                continue
            if before.get(seq.request.seq_id) == seq.num_tokens:
                self._scheduler.requeue(seq)
                num_taken += 1
            else:
                self._seen[seq.request.seq_id] = seq.num_tokens
        return num_taken

    @staticmethod
    def _may_take(seq: Sequence) -> bool:
        return seq.lacks_credit and seq.can_be_preempted


class StepPlanner:
    """Plans the steps of one engine; knows deadlines, the scheduler does not."""

    def __init__(
        self,
        state: EngineState,
        parallel: ParallelSampling,
        proposer: DraftProposer | None,
        clock: Clock,
    ) -> None:
        """Without a `proposer` no step guesses tokens."""
        self._state = state
        self._parallel = parallel
        self._proposer = proposer
        self._clock = clock
        self._parked = ParkedWatch(state.scheduler, clock)

    def settle(self) -> None:
        """End what has reached its deadline, unpark what can go on, take blocks without readers."""
        self._expire()
        self._settle_grammars()
        self._state.events.num_preemptions += self._parked.look()

    def plan(self) -> StepPlan:
        """Plan the next step and report the sequences that it starts."""
        state = self._state
        plan = state.scheduler.schedule()
        if self._proposer is not None:
            self._proposer.propose(plan)
        plan.is_probe = state.wants_probe and plan.is_empty
        state.wants_probe = False
        state.events.num_preemptions += plan.num_preemptions
        for seq in plan.started:
            self._report_started(seq)
        return plan

    def next_deadline(self, poll_s: float | None) -> float | None:
        """The time to plan again although no command has come; reports are polled in `poll_s`."""
        times = [self._state.sequences.next_deadline, self._parked.next_look]
        if poll_s is not None:
            times.append(self._clock.now() + poll_s)
        grammars = self._state.grammars
        if grammars is not None and grammars.is_awaited:
            times.append(self._clock.now() + POLL_S)
        return min((time for time in times if time is not None), default=None)

    def _expire(self) -> None:
        """End sequences that have reached their deadline, and the forks that wait for them."""
        for seq in self._state.sequences.expired(self._clock.now()):
            self._finish(seq, "deadline_exceeded")

    def _settle_grammars(self) -> None:
        """Unpark sequences with a grammar that is ready, and end those with one that failed."""
        grammars = self._state.grammars
        for seq, fault in grammars.settle() if grammars is not None else ():
            self._finish(seq, "invalid_grammar", fault)

    def _finish(self, seq: Sequence, reason: FinishReason, message: str = "") -> None:
        """End a sequence, unless another one's end has done that already."""
        if seq.state is SequenceState.ENDED:
            return
        if seq.group is not None:
            self._parallel.finish(seq, seq.group, reason, message)
        else:
            self._state.finish(seq, reason, message)

    def _report_started(self, seq: Sequence) -> None:
        seq.was_started = True
        request, manager, num_cached = seq.request, self._state.manager, seq.num_computed_tokens
        rows = manager.traveling_blocks(seq) if request.kind == "prefill" else []
        if request.checksum_every is None:
            rows = manager.rows.rows_of(request.seq_id, rows)
        started = Started(request.seq_id, rows, num_cached, seq.table.num_blocks)
        self._state.events.started.append(started)
        if rows and num_cached and manager.rows.are_blocks:
            # Else cached blocks get into their rows, or their checksums, with the first step.
            self._state.events.progress.append(Progress(request.seq_id, num_cached))
