"""The step of a worker's core: apply commands, schedule, run, commit, tell what happened.

One step is two calls, `begin_step` and `finish_step`, with the runner in between, so that whoever
drives it can publish what is about to run, or let virtual time pass. Knows no processes, sockets
or event loops. The three kinds of sequences are described in `messages.py`.
"""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from baton.engine.kv.block_audit import BlockAudit
from baton.engine.kv.block_manager import BlockManager
from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.device_handoff import DeviceHandoff
from baton.engine.protocol.messages import Command, EngineInfo, EngineLoad, Started, StepEvents
from baton.engine.protocol.runner import Runner
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.batch_builder import BatchBuilder, probe_batch
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.command_handler import CommandHandler
from baton.engine.step.engine_state import EngineState
from baton.engine.step.grammars import POLL_S, Grammars
from baton.engine.step.load_report import LoadMeter
from baton.engine.step.parallel_sampling import Choices
from baton.engine.step.parked_sequences import ParkedWatch
from baton.engine.step.report_queue import Outbox
from baton.engine.step.scheduler import Scheduler
from baton.engine.step.speculation import Drafter
from baton.engine.step.step_commit import StepCommit
from baton.engine.step.step_plan import StepPlan
from baton.system.clock import Clock

# Differs from every measured one, so that the first step reports.
_NO_LOAD = EngineLoad(0, 0, -1, 0, 0, 0.0, 0.0)


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
        self.info = _describe(config, runner, grammars)
        self.step_index = 0
        # Whether another step could bring something without a new command.
        self.has_work = False
        spec, max_seqs, max_tokens = runner.kv_spec, config.max_num_seqs, config.max_step_tokens
        max_blocks = spec.num_blocks_for(self.info.max_model_len)
        self._clock = clock
        self._grammars = grammars
        self._manager = BlockManager(config.num_blocks, spec.block_size, config.model_fp)
        self._chunks = ChunkPolicy(max_tokens, config.max_step_s)
        self._scheduler = Scheduler(self._manager, max_seqs, max_tokens, self._chunks)
        self._parked = ParkedWatch(self._scheduler, clock)
        self._builder = BatchBuilder(max_seqs, max_tokens, max_blocks)
        self._meter = LoadMeter()
        self._state = EngineState(
            self.info, self._manager, self._scheduler, StepEvents(0, _NO_LOAD), grammars, device
        )
        self._drafter = Drafter(config.num_draft_tokens, max_tokens, self.info, self._manager)
        self._choices = Choices(self._state)
        self._commands = CommandHandler(self._state, self._choices, config.max_waiting)
        self._commit = StepCommit(self._state, self._choices)
        self._audit = BlockAudit(self._manager, self._holders)
        self._outbox = Outbox(runner)
        # Of the step between begin_step and finish_step.
        self._plan = StepPlan(0, 0)
        self._began_at = 0.0
        self._last_load = _NO_LOAD
        self._probe_s: float | None = None

    def bind_pool(self, pool: memoryview) -> None:
        """Give the runner the shared pool; `info` says then how peers reach the device's own."""
        self.runner.bind_pool(pool)
        if self._state.device is not None:
            self.info.device_pool = self._state.device.open()

    def warm_up(self) -> None:
        """Begin what a first request would have to wait for, once the front knows the engine."""
        if self._grammars is not None:
            self._grammars.warm_up()

    @property
    def num_pool_blocks(self) -> int:
        """Blocks to be mapped: those of sequences, and one for probes (`probe.py`)."""
        return self.info.num_blocks + 1

    def step(self, commands: SequenceOf[Command]) -> StepEvents | None:
        """One whole step; None when nothing happened."""
        batch = self.begin_step(commands)
        return self.finish_step(None if batch is None else self.runner.run(batch))

    def begin_step(self, commands: SequenceOf[Command]) -> StepBatch | None:
        """Apply the commands and choose what to run; None when there is nothing to run."""
        for command in commands:
            self._commands.apply(command)
        self._expire()
        self._settle_grammars()
        num_given_up = self._parked.look()
        self._plan = plan = self._scheduler.schedule()
        self._drafter.draft(plan)
        self._state.events.num_preemptions += plan.num_preemptions + num_given_up
        self.has_work = bool(plan.works or plan.num_preemptions)
        for seq in plan.started:
            self._report_started(seq)
        self._began_at = self._clock.now()
        is_probe = self._commands.wants_probe and not plan.works
        self._commands.wants_probe = False
        if not plan.works and not is_probe:
            return None
        self.step_index += 1
        if is_probe:
            return probe_batch(self.step_index, self.info.num_blocks)
        batch = self._builder.build(self.step_index, plan)
        batch.block_copies = self._manager.take_block_copies()
        batch.imported_blocks = self._manager.take_imported_blocks()
        batch.exported_blocks = self._exported_blocks(plan)
        if self._grammars is not None:
            batch.masks = self._grammars.masks(plan.works)
        return batch

    def take_answers(self) -> StepEvents | None:
        """Between begin_step and running its batch: what the front need not wait for that long.

        Admissions, refusals, bindings, starts, ends, what was freed, and results that got credit;
        None when there were none.
        """
        events = self._state.events
        answers = (events.admitted, events.refused, events.bound, events.started, events.finished)
        news = any(answers) or events.freed or events.token_ids
        return self.finish_step(None) if news else None

    def finish_step(self, result: StepResult | None) -> StepEvents | None:
        """Commit what the runner returned (None without a batch).

        Returns what happened since the last finish_step, None when nothing did; or, while blocks
        are on their way to where the front reads them, what happened before (`outbox.py`).
        """
        if result is not None and self._plan.works:
            self._finish_batch(result)
        elif result is not None:
            self._probe_s = self._clock.now() - self._began_at
            self._meter.observe_short(self._probe_s)
        events = self._state.events
        if result is not None:
            events.violations = self._audit.after_step(self.step_index)
        if self._state.device is not None:
            events.pages_read = self._state.device.poll()
        events.step = self.step_index
        events.removed_hashes, events.stored = self._manager.take_kv_events()
        if self._commands.wants_snapshot:
            events.snapshot = self._manager.snapshot()
            self._commands.wants_snapshot = False
        nothing = StepEvents(self.step_index, self._last_load)
        events.load = self._last_load = self.measure_load()
        self._state.events = StepEvents(self.step_index, self._last_load)
        if events != nothing:
            self._outbox.put(events)
        return self._outbox.take()

    def next_events(self) -> StepEvents | None:
        """After finish_step has returned some: what else there is to tell."""
        return self._outbox.take()

    def batch_request_ids(self) -> tuple[str, ...]:
        """Requests in the step that has begun, each once."""
        return tuple(dict.fromkeys(work.seq.request.request_id for work in self._plan.works))

    def expected_step_s(self) -> float | None:
        """How long the step that has begun should take; None when nothing like it ran before."""
        works = self._plan.works
        if not works:
            return self._probe_s
        num_decodes = sum(work.seq.num_uncomputed_tokens == 1 for work in works)
        num_tokens = sum(work.num_new_tokens for work in works)
        return self._chunks.expected_s(num_tokens - num_decodes, num_decodes)

    def next_deadline(self) -> float | None:
        """When to take a step although no command has come."""
        times = [self._state.sequences.next_deadline, self._parked.next_look]
        device = self._state.device
        if device is not None and (poll_s := device.next_poll_s) is not None:
            times.append(self._clock.now() + poll_s)
        if (poll_s := self._outbox.next_poll_s) is not None:
            times.append(self._clock.now() + poll_s)
        if self._grammars is not None and self._grammars.is_awaited:
            times.append(self._clock.now() + POLL_S)
        return min((time for time in times if time is not None), default=None)

    def measure_load(self) -> EngineLoad:
        """Where the engine stands between two steps."""
        return EngineLoad(
            num_running=len(self._scheduler.running),
            num_waiting=self._scheduler.num_waiting_choices,
            num_blocks_free=self._manager.num_free_blocks,
            num_blocks_promised=self._manager.num_promised_blocks,
            num_queued_prefill_tokens=self._scheduler.num_queued_prefill_tokens(),
            prefill_tokens_per_s=self._meter.prefill_tokens_per_s,
            decode_step_s=self._meter.decode_step_s,
            num_not_started=self._state.sequences.num_not_started,
            num_parked=self._scheduler.num_parked,
            chunk_tokens=self._chunks.allowed_tokens(max(1, len(self._scheduler.running))),
        )

    def check_integrity(self) -> None:
        """Assert that no block is lost, doubled or held by nobody. Only between steps."""
        self._manager.check_integrity(self._holders())
        assert not list(self._audit.look())

    def _holders(self) -> Iterator[Sequence]:
        """Every sequence that may have blocks."""
        for seq in self._state.sequences.all():
            yield seq
            if seq.group is not None and seq.group.leader is seq:
                yield from seq.group.beams

    def _exported_blocks(self, plan: StepPlan) -> list[int]:
        """What this step makes final of prompts whose blocks the front reads in the shared pool."""
        exported: list[int] = []
        for seq in plan.started if self._state.device is not None else ():
            if _is_staged(seq):  # an earlier prompt's blocks may never have been there
                exported += self._manager.computed_blocks(seq)
        for work in plan.works:
            if _is_staged(work.seq):
                exported += self._manager.written_blocks(work.seq, work.num_new_tokens)
        return exported

    def _expire(self) -> None:
        """End sequences whose deadline has come, and what waits for them."""
        for seq in self._state.sequences.expired(self._clock.now()):
            self._finish(seq, "deadline_exceeded")

    def _settle_grammars(self) -> None:
        """Let go on whose grammar is ready, and end those whose grammar failed."""
        for seq, fault in self._grammars.settle() if self._grammars is not None else ():
            self._finish(seq, "invalid_grammar", fault)

    def _finish(self, seq: Sequence, reason: str, message: str = "") -> None:
        """End a sequence, unless another one's end has done that already."""
        if seq.state is SequenceState.ENDED:
            return
        if seq.group is not None:
            self._choices.finish(seq, seq.group, reason, message)
        else:
            self._state.finish(seq, reason, message)

    def _report_started(self, seq: Sequence) -> None:
        seq.was_started = True
        block_ids: list[int] = seq.table.ids.tolist()
        started = Started(seq.request.seq_id, block_ids, seq.num_computed_tokens)
        self._state.events.started.append(started)

    def _finish_batch(self, result: StepResult) -> None:
        """Commit the step that has run, and measure it."""
        works, events = self._plan.works, self._state.events
        num_decodes = sum(work.seq.num_uncomputed_tokens == 1 for work in works)
        self._commit.commit(works, result)
        events.num_step_seqs = len(works)
        events.num_step_tokens = sum(work.num_query_tokens for work in works)
        duration_s = self._clock.now() - self._began_at
        num_prefill_tokens = sum(work.num_new_tokens for work in works) - num_decodes
        self._meter.observe(duration_s, num_prefill_tokens, num_decodes)
        self._chunks.observe(duration_s, num_prefill_tokens, num_decodes)


def _is_staged(seq: Sequence) -> bool:
    return seq.request.kind == "prefill" and not seq.request.checksum_every


def _describe(config: EngineConfig, runner: Runner, grammars: Grammars | None) -> EngineInfo:
    """What the front needs to know; a sequence of `max_model_len` tokens fits into the pool."""
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
        tokenizer_file="" if grammars is None else str(grammars.tokenizer_file),
    )
