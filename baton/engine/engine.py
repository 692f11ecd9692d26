"""The step of a worker's core: apply commands, schedule, run, commit, tell what happened.

One step is two calls, `begin_step` and `finish_step`, with the runner in between, so that whoever
drives it can publish what is about to run, or let virtual time pass. Knows no processes, sockets
or event loops. The three kinds of sequences are described in `messages.py`.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from baton.engine.admission import find_fault, finish_reason, is_exhausted, max_total_tokens
from baton.engine.batch import RowLogprobs, SampleRow, StepBatch, StepResult
from baton.engine.batch_builder import BatchBuilder
from baton.engine.block_manager import BlockManager
from baton.engine.chunk_policy import ChunkPolicy
from baton.engine.load_report import LoadMeter
from baton.engine.messages import (
    Abort,
    AddSequence,
    Admitted,
    Bind,
    Bound,
    Command,
    Credit,
    EngineInfo,
    EngineLoad,
    Finished,
    Progress,
    Release,
    SequenceRefused,
    Shutdown,
    SnapshotHashes,
    Start,
    Started,
    StepEvents,
    TokenLogprobs,
)
from baton.engine.runner import Runner
from baton.engine.scheduler import Scheduler, StepPlan, Work
from baton.engine.sequence import Sequence, SequenceState
from baton.engine.sequence_table import SequenceTable
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


class Engine:
    """Owns all sequences and blocks of one worker; single-threaded."""

    def __init__(self, config: EngineConfig, runner: Runner, clock: Clock) -> None:
        self.runner = runner
        self.info = _describe(config, runner)
        self.step_index = 0
        # Whether another step could bring something without a new command.
        self.has_work = False
        spec, max_seqs, max_tokens = runner.kv_spec, config.max_num_seqs, config.max_step_tokens
        max_blocks = spec.num_blocks_for(self.info.max_model_len)
        self._max_waiting = config.max_waiting
        self._clock = clock
        self._manager = BlockManager(config.num_blocks, spec.block_size, config.model_fp)
        self._chunks = ChunkPolicy(max_tokens, config.max_step_s)
        self._scheduler = Scheduler(self._manager, max_seqs, max_tokens, self._chunks)
        self._builder = BatchBuilder(max_seqs, max_tokens, max_blocks)
        self._meter = LoadMeter()
        self._sequences = SequenceTable()
        # Of the step between begin_step and finish_step.
        self._plan = StepPlan(0, 0)
        self._began_at = 0.0
        self._last_load = _NO_LOAD
        self._events = StepEvents(0, _NO_LOAD)
        self._wants_snapshot = False

    def step(self, commands: SequenceOf[Command]) -> StepEvents | None:
        """One whole step; None when nothing happened."""
        batch = self.begin_step(commands)
        return self.finish_step(None if batch is None else self.runner.run(batch))

    def begin_step(self, commands: SequenceOf[Command]) -> StepBatch | None:
        """Apply the commands and choose what to run; None when there is nothing to run."""
        for command in commands:
            self._apply(command)
        for seq in self._sequences.expired(self._clock.now()):
            self._finish(seq, "deadline_exceeded")
        self._plan = plan = self._scheduler.schedule()
        self._events.num_preemptions = plan.num_preemptions
        self.has_work = bool(plan.works or plan.num_preemptions)
        for seq in plan.started:
            self._report_started(seq)
        self._began_at = self._clock.now()
        if not plan.works:
            return None
        self.step_index += 1
        return self._builder.build(self.step_index, plan)

    def take_answers(self) -> StepEvents | None:
        """Between begin_step and running its batch: what the front need not wait for that long.

        Admissions, refusals, bindings, starts and ends; None when there were none.
        """
        events = self._events
        answers = (events.admitted, events.refused, events.bound, events.started, events.finished)
        return self.finish_step(None) if any(answers) else None

    def finish_step(self, result: StepResult | None) -> StepEvents | None:
        """Commit what the runner returned (None without a batch).

        Returns everything that happened since the last finish_step, None when nothing did.
        """
        if result is not None:
            self._commit(result)
        events = self._events
        events.step = self.step_index
        events.removed_hashes, events.stored = self._manager.take_kv_events()
        if self._wants_snapshot:
            events.snapshot = self._manager.snapshot()
            self._wants_snapshot = False
        nothing = StepEvents(self.step_index, self._last_load)
        events.load = self._last_load = self.measure_load()
        self._events = StepEvents(self.step_index, self._last_load)
        return None if events == nothing else events

    def batch_request_ids(self) -> tuple[str, ...]:
        """Requests in the step that has begun, each once."""
        return tuple(dict.fromkeys(work.seq.request.request_id for work in self._plan.works))

    def next_deadline(self) -> float | None:
        """When to take a step although no command has come."""
        return self._sequences.next_deadline

    def measure_load(self) -> EngineLoad:
        """Where the engine stands between two steps."""
        return EngineLoad(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks_free=self._manager.num_free_blocks,
            num_blocks_promised=self._manager.num_promised_blocks,
            num_queued_prefill_tokens=self._scheduler.num_queued_prefill_tokens(),
            prefill_tokens_per_s=self._meter.prefill_tokens_per_s,
            decode_step_s=self._meter.decode_step_s,
            num_not_started=self._sequences.num_not_started,
        )

    def check_integrity(self) -> None:
        """Assert that no block is lost, doubled or held by nobody. Only between steps."""
        self._manager.check_integrity(self._sequences.all())

    def _apply(self, command: Command) -> None:
        if isinstance(command, AddSequence):
            self._add(command)
        elif isinstance(command, SnapshotHashes):
            self._wants_snapshot = True
        elif not isinstance(command, Shutdown):
            seq = self._sequences.get(command.seq_id)
            if seq is not None:
                self._change(seq, command)

    def _change(self, seq: Sequence, command: Bind | Start | Credit | Abort | Release) -> None:
        match command:
            case Credit(up_to_index=index):
                seq.credit = max(seq.credit, index)
            case Bind():
                assert seq.state is SequenceState.PROMISED, seq
                seq.state = SequenceState.BOUND
                block_ids = self._manager.bind(seq)
                self._events.bound.append(Bound(command.seq_id, block_ids))
            case Start(first_token=token):
                self._start(seq, token)
            case Abort() | Release():
                self._drop(seq)

    def _add(self, request: AddSequence) -> None:
        fault = find_fault(request, self.info)
        if fault is not None:
            self._events.refused.append(fault)
            return
        arrival = self._sequences.next_arrival()
        seq = Sequence(request, arrival, self._manager.root_hash(request))
        if is_exhausted(seq, self.info):
            finished = Finished(request.seq_id, "length", request.num_emitted)
            self._events.finished.append(finished)
        elif request.kind == "remote":
            self._promise(seq)
        elif len(self._scheduler.waiting) >= self._max_waiting:
            self._refuse(seq, "overloaded", f"{self._max_waiting} sequences wait already")
        else:
            self._sequences.add(seq)
            self._scheduler.wait(seq)

    def _promise(self, seq: Sequence) -> None:
        """Admit a remote sequence: its cached blocks are pinned, room for the others is sure."""
        num_batch_seqs = self._scheduler.num_batch_seqs + self._sequences.num_not_started
        if num_batch_seqs >= self.info.max_num_seqs:
            self._refuse(seq, "no_room", f"all {self.info.max_num_seqs} places are taken")
            return
        placement = self._manager.place_remote(seq, max_total_tokens(seq, self.info))
        if not self._manager.can_promise(seq, placement, self._scheduler.num_reserved_blocks):
            self._refuse(seq, "no_room", f"{placement.num_free_needed} blocks cannot be promised")
            return
        self._manager.promise(seq, placement)
        seq.state = SequenceState.PROMISED
        self._sequences.add(seq)
        admitted = Admitted(seq.request.seq_id, len(placement.cached_ids))
        self._events.admitted.append(admitted)

    def _refuse(self, seq: Sequence, reason: str, message: str) -> None:
        self._events.refused.append(SequenceRefused(seq.request.seq_id, reason, message))

    def _start(self, seq: Sequence, first_token: int) -> None:
        """A remote sequence's blocks are all here; the prefill worker sampled `first_token`."""
        assert seq.state is SequenceState.BOUND, seq
        seq.num_computed_tokens = seq.num_tokens
        self._manager.register_full_blocks(seq)
        seq.append(first_token)
        reason = finish_reason(seq, self.info)
        if reason is not None:
            self._finish(seq, reason)
            return
        self._scheduler.run(seq)
        self._sequences.watch_deadline(seq)

    def _report_started(self, seq: Sequence) -> None:
        seq.was_started = True
        block_ids: list[int] = seq.table.ids.tolist()
        started = Started(seq.request.seq_id, block_ids, seq.num_computed_tokens)
        self._events.started.append(started)

    def _commit(self, result: StepResult) -> None:
        """Take the step's results: KV that is final now, and what the rows brought."""
        works, events = self._plan.works, self._events
        num_decodes = sum(work.seq.num_uncomputed_tokens == 1 for work in works)
        tokens = iter(result.tokens.tolist())
        logprobs = iter(result.logprobs or [None] * len(result.tokens))
        for work in works:
            seq = work.seq
            seq.num_computed_tokens += work.num_new_tokens
            self._manager.register_full_blocks(seq)
            if seq.request.kind == "prefill":
                events.progress.append(Progress(seq.request.seq_id, seq.num_computed_tokens))
            self._take_rows(work, [(row, next(tokens), next(logprobs)) for row in work.rows])
        assert next(tokens, None) is None, "more tokens than sample rows"
        events.num_step_seqs = len(works)
        events.num_step_tokens = sum(work.num_query_tokens for work in works)
        duration_s = self._clock.now() - self._began_at
        num_prefill_tokens = sum(work.num_new_tokens for work in works) - num_decodes
        self._meter.observe(duration_s, num_prefill_tokens, num_decodes)
        self._chunks.observe(duration_s, num_prefill_tokens, num_decodes)

    def _take_rows(
        self, work: Work, results: list[tuple[SampleRow, int, RowLogprobs | None]]
    ) -> None:
        """Judged prompt tokens, then the sampled token, then those that the draft had right."""
        seq, events = work.seq, self._events
        num_sampled = 0
        for row, token, logprobs in results:
            if row.forced_token >= 0:
                assert logprobs is not None
                judged = TokenLogprobs(seq.request.seq_id, seq.num_judged_tokens, token, *logprobs)
                events.prompt_logprobs.append(judged)
                seq.num_judged_tokens += 1
                continue
            if num_sampled > 0:
                if seq.state is not SequenceState.RUNNING:
                    break
                if work.draft[num_sampled - 1] != seq.last_token:
                    break
                seq.num_computed_tokens += 1
                self._manager.register_full_blocks(seq)
                events.num_accepted += 1
            self._take_token(seq, token, logprobs)
            num_sampled += 1
        events.num_drafted += len(work.draft)

    def _take_token(self, seq: Sequence, token: int, logprobs: RowLogprobs | None) -> None:
        events, seq_id = self._events, seq.request.seq_id
        events.token_seq_ids.append(seq_id)
        events.token_ids.append(token)
        events.token_indexes.append(seq.num_output_tokens)
        if logprobs is not None:
            told = TokenLogprobs(seq_id, seq.num_output_tokens, token, *logprobs)
            events.logprobs.append(told)
        seq.append(token)
        reason = finish_reason(seq, self.info)
        if reason is not None:
            self._finish(seq, reason)
        elif seq.request.kind == "prefill":
            self._hold(seq)

    def _finish(self, seq: Sequence, reason: str) -> None:
        """The sequence ends by itself."""
        finished = Finished(seq.request.seq_id, reason, seq.num_output_tokens)
        self._events.finished.append(finished)
        if seq.request.kind == "prefill" and seq.state is SequenceState.RUNNING:
            self._hold(seq)
        else:
            self._drop(seq)

    def _hold(self, seq: Sequence) -> None:
        """The front is still reading the blocks: keep them until it releases them."""
        self._scheduler.remove(seq)
        seq.state = SequenceState.HELD

    def _drop(self, seq: Sequence) -> None:
        """Forget the sequence, whatever its state, and give its blocks back."""
        self._scheduler.remove(seq)
        self._manager.free(seq)
        self._sequences.remove(seq)


def _describe(config: EngineConfig, runner: Runner) -> EngineInfo:
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
    )
