"""The step of a worker's core: apply commands, schedule, run, commit, report.

A step is also two calls, `begin_step` and `finish_step`, with the runner in between: so a driver
can publish what is about to run, or let virtual time pass. With a runner that computes beside its
caller a step of plain decodes begins before the one before it has finished (decision 0073). Knows
no processes, sockets or event loops. The three kinds of sequences are described in
`protocol/messages.py`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.handoff_rows import HandoffRows
from baton.engine.protocol.batch import LayerMarks, StepBatch, StepResult
from baton.engine.protocol.device_handoff import DeviceHandoff
from baton.engine.protocol.messages import Command, EngineInfo, EngineLoad, StepEvents
from baton.engine.protocol.progress_page import ProgressPage
from baton.engine.protocol.runner import AheadRunner, PoolingRunner, Runner, StagingRunner
from baton.engine.step.batch_builder import StepBatches
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.command_handler import CommandHandler
from baton.engine.step.engine_state import EngineState
from baton.engine.step.grammars import Grammars
from baton.engine.step.layer_reports import MIN_GROUP_BYTES, LayerReports
from baton.engine.step.parallel_sampling import ParallelSampling
from baton.engine.step.scheduler import Scheduler
from baton.engine.step.speculation import DraftProposer
from baton.engine.step.step_commit import StepCommit
from baton.engine.step.step_plan import StepPlan
from baton.engine.step.step_planner import StepPlanner
from baton.engine.step.step_reporter import StepReporter
from baton.engine.step.step_timer import StepShares, StepTimer
from baton.system.clock import Clock


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of one engine. `max_step_tokens` bounds the tokens that one step computes."""

    model_fp: str
    model_name: str
    model_revision: str
    num_blocks: int
    max_num_seqs: int = 64
    max_step_tokens: int = 2048
    # How long a step should take at most; None = as long as its tokens need.
    max_step_s: float | None = 0.1
    max_waiting: int = 256
    # Most tokens of one sequence that a step guesses and checks; 0 = no speculation.
    num_draft_tokens: int = 0
    # Least KV of a prompt's group of layers that is reported before the step ends.
    min_group_bytes: int = MIN_GROUP_BYTES
    # Of the staging ring of a runner with a cache of its own.
    num_rows: int = 0
    # Where its files are, and their digests when it was loaded; none = nobody asks for them.
    model_folder: str = ""
    file_digests: Mapping[str, str] = field(default_factory=dict)


class _StepRuns:
    """Runs the steps of one engine as they begin, those of plain decodes ahead where it can."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ahead = runner if isinstance(runner, AheadRunner) else None
        # Waits for the result of the step that was launched and has not finished.
        self._result: Callable[[], StepResult] | None = None

    @property
    def can_go_ahead(self) -> bool:
        """The runner computes beside its caller."""
        return self._ahead is not None

    def run(self, batch: StepBatch | None, *, is_plain: bool) -> StepResult | None:
        """Run the step that has begun, if any; returns the result of the one that is to finish."""
        if batch is not None and (self._ahead is None or not is_plain):
            assert self._result is None, "only plain decodes are launched beside others"
            return self._runner.run(batch)
        earlier, self._result = self._result, None
        if batch is not None and self._ahead is not None:
            self._result = self._ahead.launch(batch)
        return None if earlier is None else earlier()


class Engine:
    """Owns all sequences and blocks of one worker; single-threaded."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        clock: Clock,
        grammars: Grammars | None = None,
        device: DeviceHandoff | None = None,
    ) -> None:
        """Without `grammars`, sequences that have one are refused."""
        self.runner = runner
        self.step_index = 0
        max_tokens = config.max_step_tokens
        chunks = ChunkPolicy(max_tokens, config.max_step_s)
        info = _describe(config, runner, grammars)
        self._staging = runner if isinstance(runner, StagingRunner) else None
        rows = HandoffRows(self._staging, config.num_rows)
        block_size = runner.kv_spec.block_size
        manager = BlockManager(config.num_blocks, block_size, config.model_fp, rows)
        scheduler = Scheduler(manager, config.max_num_seqs, max_tokens, chunks)
        state = EngineState(info, manager, scheduler, grammars, device)
        parallel = ParallelSampling(state)
        proposer = None
        if config.num_draft_tokens:
            proposer = DraftProposer(config.num_draft_tokens, max_tokens, info, manager)
        self._state = state
        self._commands = CommandHandler(state, parallel, config.max_waiting)
        self._planner = StepPlanner(state, parallel, proposer, clock)
        self._plan = StepPlan(0, 0)
        # The steps that have begun and not finished: two at most.
        self._begun: deque[StepPlan] = deque()
        self._runs = _StepRuns(runner)
        self._batches = StepBatches(state, max_tokens)
        self._timer = StepTimer(clock, chunks, StepShares(manager, chunks))
        self._commit = StepCommit(state, parallel, self._timer)
        self._reporter = StepReporter(state, self._timer, runner)
        self._layers = LayerReports(state, self._reporter, runner, config.min_group_bytes)

    @property
    def info(self) -> EngineInfo:
        return self._state.info

    @property
    def num_pool_rows(self) -> int:
        """Rows to be mapped: of the ring, or the blocks and one for probes (`batch_builder.py`)."""
        return self.info.num_rows or self.info.num_blocks + 1

    @property
    def has_work(self) -> bool:
        """Another step could bring something without a new command."""
        return bool(self._begun) or self._plan.has_work

    def bind_pool(self, pool: memoryview) -> None:
        """Give the runner the shared pool; `info` says then how peers reach the device's own."""
        if self._staging is not None:
            self._staging.bind_ring(pool, self.info.num_blocks + 1)
        else:
            self.runner.bind_pool(pool)
        if self._state.device is not None:
            self.info.device_pool = self._state.device.open()

    def warm_up(self) -> None:
        """Begin, once the front knows the engine, what a first request would have to wait for."""
        if self._state.grammars is not None:
            self._state.grammars.states.warm_up()

    def step(self, commands: SequenceOf[Command]) -> StepEvents | None:
        """One turn: schedule, run, commit. None when nothing happened."""
        batch = self.begin_step(commands)
        return self.finish_step(self._runs.run(batch, is_plain=self._plan.is_plain))

    def turn(
        self,
        commands: SequenceOf[Command],
        page: ProgressPage,
        send: Callable[[StepEvents], None],
    ) -> None:
        """One turn of a core's loop: a step if there is something to compute, and its reports.

        After a step that was launched ahead, the reports are of the one before.
        """
        batch = self.begin_step(commands)
        if batch is not None:
            page.begin_step(batch.step, self.batch_request_ids(), self.expected_step_s())
            if (answers := self.take_answers()) is not None:
                send(answers)
            batch.layer_marks = self.layer_marks(batch, send)
        events = self.finish_step(self._runs.run(batch, is_plain=self._plan.is_plain))
        while events is not None:
            send(events)
            events = self.next_events()

    @property
    def may_begin(self) -> bool:
        """`begin_step` may be called: no step runs, or one of plain decodes beside its caller."""
        if not self._begun:
            return True
        return self._runs.can_go_ahead and len(self._begun) == 1 and self._begun[0].is_plain

    def begin_step(self, commands: SequenceOf[Command]) -> StepBatch | None:
        """Apply the commands and schedule; None when there is nothing to run.

        While a step runs, None as well unless nothing depends on what that one brings.
        """
        if not self._begun:
            self._timer.turn()
        for command in commands:
            self._commands.apply(command)
        assert self.may_begin, "a step runs that needs the caller"
        self._planner.settle()
        if self._begun and not self._may_go_ahead():
            return None
        self._plan = plan = self._planner.plan()
        if plan.is_empty:
            if not self._begun:
                self._timer.idle()
            return None
        assert plan.is_plain or not self._begun, "it needs what the step that runs brings"
        self.step_index += 1
        batch = self._batches.build(self.step_index, plan, is_ahead=bool(self._begun))
        plan.await_tokens()
        if not self._begun:
            self._timer.begin()
        self._begun.append(plan)
        return batch

    def _may_go_ahead(self) -> bool:
        """Another step may begin before one of plain decodes has finished: it would be another."""
        return self._state.scheduler.has_plain_decodes_only() and not self._state.wants_probe

    def take_answers(self) -> StepEvents | None:
        """Between begin_step and running its batch: what the front need not wait for that long.

        These are admissions, refusals, bindings, starts, ends, freed sequences, and results that
        got credit; None when there were none.
        """
        return self._reporter.report(self.step_index) if self._reporter.has_answers else None

    def layer_marks(
        self, batch: StepBatch, send: Callable[[StepEvents], None]
    ) -> LayerMarks | None:
        """Between begin_step and running its batch: where it reports to `send` while it runs."""
        if len(batch.token_ids) < self._layers.least_tokens:
            return None
        return self._layers.marks(batch.step, self._plan, send)

    def finish_step(self, result: StepResult | None) -> StepEvents | None:
        """Commit the result of the oldest step that has begun (None without one), and report.

        Returns what happened since the last report, None when nothing did; or, while blocks are on
        their way to where the front reads them, what happened before (`step_reporter.py`).
        """
        if result is not None:
            self._commit.commit(self.step_index, self._begun.popleft(), result)
            if self._begun:
                self._timer.begin()
            elif self._plan.is_empty:
                self._timer.idle()
        return self._reporter.report(self.step_index)

    def next_events(self) -> StepEvents | None:
        """After finish_step has returned a report: the next one that may leave."""
        return self._reporter.queue.take()

    def batch_request_ids(self) -> tuple[str, ...]:
        """Requests in the steps that have begun, each once."""
        seqs = [seq for plan in self._begun for seq in plan.all]
        return tuple(dict.fromkeys([seq.request.request_id for seq in seqs]))

    def expected_step_s(self) -> float | None:
        """The time that the last step to begin should take; None when none like it ran before."""
        return self._timer.expected_s(self._plan)

    def next_deadline(self) -> float | None:
        """The time to take a step although no command has come."""
        return self._planner.next_deadline(self._reporter.next_poll_s)

    def measure_load(self) -> EngineLoad:
        """The engine's load between two steps."""
        return self._reporter.measure_load()

    def check_integrity(self) -> None:
        """Assert that no block is lost, doubled or held without an owner. Only between steps."""
        self._state.manager.check_integrity(self._state.sequences.block_holders())
        assert not list(self._commit.audit.look())


def _describe(config: EngineConfig, runner: Runner, grammars: Grammars | None) -> EngineInfo:
    """Describe the engine; a sequence of `max_model_len` tokens fits into the pool."""
    spec = runner.kv_spec
    return EngineInfo(
        model_fp=config.model_fp,
        model_name=config.model_name,
        model_revision=config.model_revision,
        kv_spec=spec,
        num_blocks=config.num_blocks,
        max_model_len=min(runner.max_model_len, config.num_blocks * spec.block_size),
        max_num_seqs=config.max_num_seqs,
        vocab_size=runner.vocab_size,
        eos_token_ids=list(runner.eos_token_ids),
        tokenizer_file=None if grammars is None else str(grammars.states.compiler.tokenizer_file),
        pooling=runner.pooling if isinstance(runner, PoolingRunner) else None,
        num_rows=config.num_rows if isinstance(runner, StagingRunner) else 0,
        model_folder=config.model_folder,
        file_digests=dict(config.file_digests),
    )
