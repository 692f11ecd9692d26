"""One vLLM EngineCore as the engine of a core process: commands in, steps, events out.

vLLM schedules, computes and keeps the blocks; what a front is promised beyond that is kept here:
credit, deadlines, suspects, held prefills, when blocks are free again. Single-threaded.
"""

from collections.abc import Callable, Sequence
from typing import Any

from baton.engine.protocol.messages import (
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
    Probe,
    Progress,
    Release,
    SequenceRefused,
    SnapshotHashes,
    Start,
    Started,
    StepEvents,
)
from baton.engine.protocol.progress_page import PAGE_BYTES, ProgressPage
from baton.engine.protocol.reasons import RefusalReason, StopReason
from baton.engines.vllm.admission import find_fault, find_lack
from baton.engines.vllm.connector import StepCopies
from baton.engines.vllm.keyed_cache import KeyedCache
from baton.engines.vllm.outputs import take_tokens
from baton.engines.vllm.pace import StepPace, load_of
from baton.engines.vllm.row_choice import RowOptions
from baton.engines.vllm.sequences import VllmSequence, core_request, reason_at_start
from baton.engines.vllm.step_bill import Share, StepBill
from baton.engines.vllm.turns import Turns
from baton.system.clock import Clock

_STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length"}

Send = Callable[[StepEvents], None]


class VllmEngine:
    """Owns all sequences of one worker. `core` is vLLM's EngineCore.

    It has more than ten attributes: vLLM's parts, the sequences, and a helper for each promise.
    """

    def __init__(
        self, core: Any, info: EngineInfo, rank_side: Any, pace: StepPace, clock: Clock
    ) -> None:
        """`rank_side` is the connector of the one rank."""
        self.info = info
        self.step_index = 0
        self._core = core
        self._scheduler = core.scheduler
        self._rank_side = rank_side
        self._pace = pace
        self._bill = StepBill(clock)
        self._clock = clock
        self._cache = KeyedCache(info.model_fp, info.kv_spec.block_size)
        self._seqs: dict[str, VllmSequence] = {}
        # Aborted or released, and their blocks are not free yet.
        self._freeing: set[str] = set()
        self._turns = Turns()
        self._copies = StepCopies()
        self._events = self._new_events()
        self._shares: list[Share] = []
        self._page = ProgressPage(bytearray(PAGE_BYTES))
        self._send: Send = lambda events: None  # before the first turn nobody listens
        self._wants_snapshot = self._wants_probe = self._is_stuck = self.finds_room = False
        core.request_block_hasher = self._cache.hash_blocks
        self._scheduler.kv_event_publisher = self._cache
        self._scheduler.owner = self._scheduler.connector.owner = self

    # What the core's loop calls.

    @property
    def num_pool_blocks(self) -> int:
        """Blocks to be mapped: as many as vLLM has."""
        return self.info.num_blocks

    @property
    def has_work(self) -> bool:
        """Another step could bring something without a new command."""
        scheduler = self._scheduler
        if not self._copies.is_empty or scheduler.finished_req_ids:
            return True
        return not self._is_stuck and (
            any(self.may_run(request) for request in scheduler.running)
            or any(self._can_start(request) for request in scheduler.waiting)
            or any(self._can_start(request) for request in scheduler.kv_holding_waiting)
        )

    def bind_pool(self, pool: memoryview) -> None:
        """Copy blocks that are handed over through this pool."""
        self._rank_side.bind_pool(pool, self.num_pool_blocks)

    def warm_up(self) -> None:
        """Nothing is left to begin: `warm_up.py` ran before the engine was announced."""

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; nothing runs."""
        self._core.reset_prefix_cache()
        self._cache.clear()

    def turn(self, commands: Sequence[Command], page: ProgressPage, send: Send) -> None:
        """Apply the commands, run a step if there is something to compute, and report."""
        self._page, self._send = page, send
        self._bill.begin()
        self._is_stuck = self._is_stuck and not commands
        for command in commands:
            self._apply(command)
        self._end_expired()
        self._turns.begin(self._seqs.values())
        if self.has_work:
            self._step()
        elif self._wants_probe:
            self._probe()
        self._wants_probe = False
        self._turns.end()
        if not self.has_work:
            self._bill.idle()
        self._report()

    def next_deadline(self) -> float | None:
        """The time to take a turn although no command has come."""
        deadlines = [seq.add.deadline for seq in self._seqs.values() if seq.may_expire]
        return min((at for at in deadlines if at is not None), default=None)

    # What scheduler and connector ask and tell (StepOwner, ConnectorOwner).

    def may_run(self, request: Any) -> bool:
        seq = self._seqs.get(request.request_id)
        if seq is None or seq.is_remote:  # to find room for a prompt computes nothing
            return True
        return not (self.finds_room or seq.is_parked or self._turns.must_wait(seq))

    def most_step_tokens(self) -> int:
        running = self._scheduler.running
        num_decodes = sum(each.num_tokens - each.num_computed_tokens == 1 for each in running)
        return self._pace.most_tokens(num_decodes)

    def on_preempted(self, request: Any) -> None:
        self._events.num_preemptions += 1
        seq = self._seqs.get(request.request_id)
        if seq is not None and seq.add.kind == "prefill" and seq.is_started and not seq.is_over:
            # The front may be sending from blocks that are others' now.
            seq.is_over = True
            self._refuse(seq.add, "no_room", "other sequences needed its blocks")

    def on_allocated(self, name: str, block_ids: list[int], num_missing_tokens: int) -> None:
        seq = self._seqs[name]
        size = self.info.kv_spec.block_size
        seq.block_ids = block_ids
        seq.num_cached_blocks = (seq.request.num_prompt_tokens - num_missing_tokens) // size
        self._events.admitted.append(Admitted(seq.add.seq_id, seq.num_cached_blocks))

    def take_copies(self, scheduled: Any) -> StepCopies:
        copies, self._copies = self._copies, StepCopies()
        self._shares = []
        for name, num_tokens in scheduled.num_scheduled_tokens.items():
            if (seq := self._seqs.get(name)) is not None:
                self._take_part(seq, num_tokens, copies)
        return copies

    def on_scheduled(self, scheduled: Any) -> None:
        seqs = [self._seqs[name] for name in scheduled.num_scheduled_tokens if name in self._seqs]
        ids = dict.fromkeys(seq.add.request_id for seq in seqs)
        self._page.begin_step(self.step_index, ids, self._pace.expect(self._shares, seqs))
        answers = self._events
        if answers.admitted or answers.refused or answers.finished or answers.freed:
            self._report()

    # The step.

    def _step(self) -> None:
        self.step_index += 1
        is_for_room = self.finds_room = any(seq.lacks_room for seq in self._seqs.values())
        pool = self._scheduler.kv_cache_manager.block_pool
        num_free = pool.get_num_free_blocks()
        outputs, has_run = self._core.step_fn()
        self.finds_room = False
        self._core.post_step(has_run)
        step_s = self._bill.charge(self._shares, self._events)
        self._pace.ran(step_s)
        for each in outputs.values() if outputs else ():
            for output in each.outputs:
                self._take_output(output)
        self._note_progress()
        self._refuse_without_room()
        # Nobody could run, and only a command can change that.
        self._is_stuck = not (
            has_run
            or is_for_room
            or pool.get_num_free_blocks() > num_free
            or self._turns.are_limited
            or self._events.num_preemptions
            or self._scheduler.finished_recving_kv_req_ids
        )

    def _probe(self) -> None:
        self.step_index += 1
        self._page.begin_step(self.step_index, (), self._pace.expect_probe())
        self._core.execute_dummy_batch()
        self._pace.probed(self._bill.charge((), self._events))

    def _take_part(self, seq: VllmSequence, num_tokens: int, copies: StepCopies) -> None:
        """The sequence is in the step that was just scheduled."""
        request, seq_id = seq.request, seq.add.seq_id
        start, size = request.num_computed_tokens, self.info.kv_spec.block_size
        table = self._scheduler.kv_cache_manager.get_block_ids(seq.name)[0]
        is_whole = start + num_tokens == request.num_tokens
        is_prefill = num_tokens > 1 or not is_whole or not seq.is_started
        is_redone = is_prefill and seq.is_started and request.num_preemptions > 0
        self._shares.append(Share(seq_id, num_tokens, len(table), is_prefill, is_redone))
        if seq.add.kind == "prefill":
            # Also those that were cached: a local sequence may have computed them.
            first = start // size if seq.is_started else 0
            copies.exports += table[first : -(-(start + num_tokens) // size)]
        if not seq.is_started:
            seq.is_started = True
            seq.num_cached_blocks = start // size
            if seq.add.kind == "local":
                self._events.started.append(Started(seq_id, list(table), start))

    def _note_progress(self) -> None:
        """Tell which blocks of prefills are final, and which were added to their tables.

        Such a sequence has started for the front when its first blocks are in the pool.
        """
        for share in self._shares:
            seq = self._seqs.get(str(share.seq_id))
            if seq is None or seq.add.kind != "prefill" or seq.is_over:
                continue
            request, size = seq.request, self.info.kv_spec.block_size
            table = self._scheduler.kv_cache_manager.get_block_ids(seq.name)[0]
            new = list(table[len(seq.block_ids) :])
            if not seq.block_ids:
                num_cached = seq.num_cached_blocks * size
                self._events.started.append(Started(share.seq_id, new, num_cached))
            num_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            more = new if seq.block_ids else []
            self._events.progress.append(Progress(share.seq_id, num_tokens, block_ids=more))
            seq.block_ids += new

    def _take_output(self, output: Any) -> None:
        seq = self._seqs.get(output.request_id)
        if seq is None or seq.is_over:
            return
        events, seq_id = self._events, seq.add.seq_id
        take_tokens(seq, output, events)
        if output.finish_reason is None:
            return
        reason = str(output.finish_reason)
        has_more = seq.next_index < seq.add.sampling.max_tokens
        has_more &= seq.request.num_tokens < self.info.max_model_len
        if seq.add.kind != "prefill":
            self._forget(seq)
        elif reason == "length" and has_more:
            return  # its one token is there; it holds its blocks until Release
        if reason in _STOP_REASONS:
            events.finished.append(Finished(seq_id, _STOP_REASONS[reason], seq.next_index))
        else:
            self._refuse(seq.add, "overloaded", f"{self.info.engine} ended it: {reason}")

    def _refuse_without_room(self) -> None:
        """A remote sequence is asked once: there are blocks for its prompt, or not."""
        for seq in list(self._seqs.values()):
            if seq.lacks_room:
                self._core.abort_requests([seq.name])
                self._forget(seq)
                self._refuse(seq.add, "no_room", "there are no blocks for its prompt")

    # Commands.

    def _apply(self, command: Command) -> None:
        match command:
            case AddSequence():
                self._add(command)
            case SnapshotHashes():
                self._wants_snapshot = True
            case Probe():
                self._wants_probe = True
            case Abort(seq_id=seq_id) | Release(seq_id=seq_id):
                self._end(str(seq_id))
            case Credit(seq_id=seq_id) | Bind(seq_id=seq_id) | Start(seq_id=seq_id):
                if (seq := self._seqs.get(str(seq_id))) is not None:
                    self._change(seq, command)

    def _change(self, seq: VllmSequence, command: Credit | Bind | Start) -> None:
        match command:
            case Credit(up_to_index=index):
                seq.credit = max(seq.credit, index)
            case Bind():
                seq.is_bound = True
                self._events.bound.append(Bound(seq.add.seq_id, seq.block_ids))
            case Start(first_token=token):
                seq.take_first_token(token)
                missing = seq.block_ids[seq.num_cached_blocks :]
                self._copies.imports.append((seq.name, missing))

    def _add(self, add: AddSequence) -> None:
        fault = find_fault(add, self.info)
        if fault is not None:
            self._events.refused.append(fault)
        elif (reason := reason_at_start(add, self.info)) is not None:
            self._events.finished.append(Finished(add.seq_id, reason, add.num_emitted))
        elif (lack := self._find_lack(add)) is not None:
            self._events.refused.append(lack)
        else:
            self._take_in(add)

    def _take_in(self, add: AddSequence) -> None:
        name = str(add.seq_id)
        options = RowOptions(add.seq_id, add.choice, add.sampling, add.num_emitted)
        self._cache.expect(name, add)
        wanted = core_request(add, options, self.info.eos_token_ids)
        request, wave = self._core.preprocess_add_request(wanted)
        self._seqs[name] = VllmSequence(add, request, options, add.credit, add.num_emitted)
        self._core.add_request(request, wave)

    def _end(self, name: str) -> None:
        """Give everything back; `freed` follows once vLLM has."""
        seq = self._seqs.get(name)
        request = self._scheduler.requests.get(name)
        if seq is not None:
            self._forget(seq)
        self._freeing.add(name)
        if request is None:
            return
        if request.is_finished():  # a prefill that holds its blocks
            self._copies.released.add(name)
            return
        waits = request.status.name == "WAITING_FOR_REMOTE_KVS"
        self._core.abort_requests([name])
        if waits and name in self._scheduler.requests and seq is not None and not seq.is_started:
            self._copies.dropped.add(name)

    def _end_expired(self) -> None:
        now = self._clock.now()
        for seq in list(self._seqs.values()):
            deadline = seq.add.deadline
            if deadline is None or deadline > now or not seq.may_expire:
                continue
            finished = Finished(seq.add.seq_id, "deadline_exceeded", seq.next_index)
            self._events.finished.append(finished)
            if seq.add.kind == "prefill" and seq.is_started:
                seq.is_over = True  # the front may be sending from its blocks
            else:
                self._end(seq.name)
                self._freeing.discard(seq.name)

    # Reports.

    def _report(self) -> None:
        """Tell what has happened since the last report, if anything has."""
        events = self._events
        for name in [name for name in self._freeing if name not in self._scheduler.requests]:
            self._freeing.discard(name)
            events.freed.append(int(name))
        self._cache.report(events)
        nothing = self._new_events()
        self._cache.report(nothing)
        if self._wants_snapshot:
            self._wants_snapshot, events.snapshot = False, self._cache.snapshot()
        self._bill.report(events)
        if events == nothing:
            return
        events.step = self.step_index
        events.load = load_of(self._scheduler, list(self._seqs.values()), self._pace)
        self._events = self._new_events()
        self._send(events)

    def _new_events(self) -> StepEvents:
        return StepEvents(self.step_index, EngineLoad(0, 0, 0, 0, 0, 0.0, 0.0))

    def _refuse(self, add: AddSequence, reason: RefusalReason, message: str) -> None:
        self._events.refused.append(SequenceRefused(add.seq_id, reason, message))

    def _forget(self, seq: VllmSequence) -> None:
        del self._seqs[seq.name]
        self._cache.forget(seq.name)
        self._bill.leave(seq.add.seq_id)

    def _find_lack(self, add: AddSequence) -> SequenceRefused | None:
        scheduler = self._scheduler
        num_taken = len(scheduler.running) + len(scheduler.kv_holding_waiting)
        num_taken += sum(seq.lacks_room for seq in self._seqs.values())
        return find_lack(add, self.info.max_num_seqs, num_taken, len(scheduler.waiting))

    def _can_start(self, request: Any) -> bool:
        waits = request.status.name == "WAITING_FOR_REMOTE_KVS"
        has_come = request.request_id in self._scheduler.finished_recving_kv_req_ids
        return (has_come or not waits) and self.may_run(request)
