"""One vLLM EngineCore as the engine of a core process: commands in, steps, events out.

vLLM schedules, computes and keeps the blocks; what a front is promised beyond that is kept here and
in the parts of the engine: credit, deadlines, suspects, held prefills, when blocks are free again.
Single-threaded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.engine.grammar.states import POLL_S, GrammarStates
from baton.engine.protocol.adapter_messages import ServeAdapters
from baton.engine.protocol.cache_messages import SnapshotHashes
from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Admitted,
    Bind,
    Bound,
    Command,
    Credit,
    EngineInfo,
    Probe,
    Release,
    Start,
    StepEvents,
)
from baton.engine.protocol.progress_page import PAGE_BYTES, ProgressPage
from baton.engine.protocol.reasons import StopReason
from baton.engines.vllm.arrivals import Arrivals
from baton.engines.vllm.choices import Choices, behind
from baton.engines.vllm.departures import Departures
from baton.engines.vllm.drafts import Drafts
from baton.engines.vllm.masks import Masks, fault_of
from baton.engines.vllm.pace import StepPace, is_outranked
from baton.engines.vllm.ranks.connector import StepCopies
from baton.engines.vllm.reports import Reports
from baton.engines.vllm.scheduler import Turns
from baton.engines.vllm.sequences import VllmSequence, reason_at_start
from baton.engines.vllm.state import VllmState
from baton.engines.vllm.stats import StatsBook
from baton.engines.vllm.step_parts import StepParts
from baton.engines.vllm.warm_up import warm_up
from baton.system.clock import Clock

_STOP_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length"}

Send = Callable[[StepEvents], None]


class VllmParts(NamedTuple):
    """What was loaded: vLLM's EngineCore, the descriptor of the pool, and the grammars of the
    vocabulary, where there is a tokenizer for them. `num_draft_tokens` of a sequence are guessed in
    a step."""

    core: Any
    pool_fd: int
    grammars: GrammarStates | None
    num_draft_tokens: int = 0


class VllmEngine:
    """Drives the sequences of one worker.

    It has more than ten attributes: vLLM's parts, and a helper for each promise.
    """

    def __init__(self, parts: VllmParts, info: EngineInfo, pace: StepPace, clock: Clock) -> None:
        self.info = info
        self.step_index = 0
        self._core = parts.core
        self._scheduler = parts.core.scheduler
        self._pool_fd = parts.pool_fd
        self._pace = pace
        self._state = state = VllmState(parts.core, info, clock)
        self._masks = Masks(parts.grammars)
        self._arrivals = Arrivals(state, self._masks)
        self._choices = Choices(state, self._arrivals)
        self._departures = Departures(state, self._masks)
        self._parts = StepParts(state)
        max_step_tokens = parts.core.vllm_config.scheduler_config.max_num_batched_tokens
        self._drafts = Drafts(state, parts.num_draft_tokens, max_step_tokens)
        self._stats = StatsBook(parts.core.scheduler)
        self._reports = Reports(state, self._departures, self._stats, pace)
        self._turns = Turns()
        self._page = ProgressPage(bytearray(PAGE_BYTES))
        self._send: Send = lambda events: None  # before the first turn nobody listens
        self._wants_probe = self._is_stuck = self.finds_room = False
        state.adapters.loading = self._loading
        parts.core.request_block_hasher = state.cache.hash_blocks
        self._scheduler.kv_event_publisher = state.cache
        self._scheduler.owner = self._scheduler.connector.owner = self
        parts.core.model_executor.masks_of_step = self.masks_of_step

    # What the core's loop calls.

    @property
    def num_pool_rows(self) -> int:
        """Rows to be mapped: those of the staging ring."""
        return self.info.num_rows

    @property
    def has_work(self) -> bool:
        """Another step could bring something without a new command."""
        scheduler = self._scheduler
        if not self._state.copies.is_empty or scheduler.finished_req_ids:
            return True
        return not self._is_stuck and (
            any(self.may_run(request) for request in scheduler.running)
            or any(self._can_start(request) for request in scheduler.waiting)
            or any(self._can_start(request) for request in scheduler.kv_holding_waiting)
        )

    def bind_pool(self, pool: memoryview) -> None:
        """Copy blocks that are handed over through this ring, once everything has run once."""
        self._core.model_executor.bind_ring(self._pool_fd, len(pool), self.num_pool_rows)
        warm_up(self)
        self._core.reset_prefix_cache()
        self._state.cache.clear()

    def warm_up(self) -> None:
        """Read the tokenizer for grammars; `warm_up.py` ran before the engine was announced."""
        self._masks.warm_up()

    def turn(self, commands: Sequence[Command], page: ProgressPage, send: Send) -> None:
        """Apply the commands, run a step if there is something to compute, and report."""
        self._page, self._send = page, send
        self._state.bill.begin()
        self._is_stuck = self._is_stuck and not (commands or self._masks.is_awaited)
        for command in commands:
            self._apply(command)
        for seq in self._departures.end_expired():
            self._choices.end(seq)
        for seq, fault in self._masks.settle():
            self._fail(seq, fault)
        self._lease_rows()
        self._turns.begin(self._state.seqs.values())
        if self.has_work:
            self._step()
        elif self._wants_probe:
            self._probe()
        self._wants_probe = False
        self._turns.end()
        if not self.has_work:
            self._state.bill.idle()
        self._report()

    def next_deadline(self) -> float | None:
        """The time to take a turn although no command has come."""
        seqs = self._state.seqs.values()
        times = [seq.add.deadline for seq in seqs if seq.may_expire]
        if self._masks.is_awaited:
            times.append(self._state.clock.now() + POLL_S)
        if (poll_s := self._reports.next_poll_s) is not None:
            times.append(self._state.clock.now() + poll_s)
        return min((at for at in times if at is not None), default=None)

    # What scheduler, connector and ranks ask and tell (StepOwner, ConnectorOwner).

    def may_run(self, request: Any) -> bool:
        seq = self._state.seqs.get(request.request_id)
        if seq is None or seq.is_remote:  # to find room for a prompt computes nothing
            return True
        must_wait = self._turns.must_wait(seq) or self._masks.must_wait(seq)
        return not (self.finds_room or seq.is_parked or seq.waits_for_rows or must_wait)

    def prepare_step(self) -> int:
        running = self._scheduler.running
        num_decodes = sum(each.num_tokens - each.num_computed_tokens == 1 for each in running)
        has_prompts = num_decodes < len(running) or bool(self._scheduler.waiting)
        may_lengthen = not (has_prompts and is_outranked(self._scheduler, self.may_run))
        return self._pace.most_tokens(num_decodes, may_lengthen, self._drafts.propose(running))

    def on_preempted(self, request: Any) -> None:
        self._state.events.num_preemptions += 1
        seq = self._state.seqs.get(request.request_id)
        if seq is not None and seq.add.kind == "prefill" and seq.is_started and not seq.is_over:
            # The front may be sending from blocks that are others' now.
            seq.is_over = True
            self._choices.end(seq, is_told=True)
            self._state.refuse(seq.add, "no_room", "other sequences needed its blocks")

    def on_allocated(self, name: str, block_ids: list[int], num_missing_tokens: int) -> None:
        seq, state = self._state.seqs[name], self._state
        num_cached_tokens = seq.request.num_prompt_tokens - num_missing_tokens
        num_cached = num_cached_tokens // self.info.kv_spec.block_size
        if state.rows.lease(seq.add.seq_id, len(block_ids) - num_cached):  # else it has no room
            seq.has_rows, seq.block_ids, seq.num_cached_blocks = True, block_ids, num_cached
            state.events.admitted.append(Admitted(seq.add.seq_id, num_cached))

    def take_copies(self, scheduled: Any) -> StepCopies:
        return self._parts.take(scheduled)

    def masks_of_step(self) -> dict[str, NDArray[np.int32] | None]:
        seqs = (self._state.seqs.get(str(share.seq_id)) for share in self._parts.shares)
        return self._masks.of_step(seq for seq in seqs if seq is not None)

    def on_scheduled(self, scheduled: Any) -> None:
        seqs = self._state.seqs
        parts = [seqs[name] for name in scheduled.num_scheduled_tokens if name in seqs]
        ids = dict.fromkeys(seq.add.request_id for seq in parts)
        expected_s = self._pace.expect(self._parts.shares, parts)
        self._page.begin_step(self.step_index, ids, expected_s)
        news = self._state.events
        # A sequence's time in the queue ends when its first step begins.
        if any((news.admitted, news.refused, news.started, news.finished, news.freed)):
            self._report()

    # The step.

    def _lease_rows(self) -> None:
        """Give rows to prefills that wait for them, the most important and oldest first."""
        waiting = [seq for seq in self._state.seqs.values() if seq.waits_for_rows]
        for seq in sorted(waiting, key=lambda seq: seq.request.priority):
            num_blocks = self.info.kv_spec.num_blocks_for(seq.request.num_prompt_tokens)
            num_rows = max(0, num_blocks - seq.add.num_peer_blocks)
            seq.has_rows = self._state.rows.lease(seq.add.seq_id, num_rows)
            if not seq.has_rows:
                return

    def _step(self) -> None:
        self.step_index += 1
        is_for_room = self.finds_room = any(s.lacks_room for s in self._state.seqs.values())
        pool = self._scheduler.kv_cache_manager.block_pool
        num_free = pool.get_num_free_blocks()
        outputs, has_run = self._core.step_fn()
        self.finds_room = False
        self._pace.ran(self._state.bill.charge(self._parts.shares, self._state.events))
        for each in outputs.values() if outputs else ():
            for output in each.outputs:
                self._take_output(output)
        self._parts.note_progress()
        self._refuse_without_room()
        # Nobody could run, and only a command can change that.
        self._is_stuck = not (
            has_run
            or is_for_room
            or pool.get_num_free_blocks() > num_free
            or self._turns.are_limited
            or self._state.events.num_preemptions
            or self._scheduler.finished_recving_kv_req_ids
        )
        self._release_received()

    def _probe(self) -> None:
        self.step_index += 1
        self._page.begin_step(self.step_index, (), self._pace.expect_probe())
        self._core.model_executor.probe()
        self._pace.probed(self._state.bill.charge((), self._state.events))

    def _take_output(self, output: Any) -> None:
        seq = self._state.seqs.get(output.request_id)
        if seq is None or seq.is_over:
            return
        if (fault := fault_of(seq)) is not None:
            self._fail(seq, fault)
            return
        self._stats.take_output(seq, output)
        is_first = seq.next_index == seq.add.num_emitted
        self._parts.take_tokens(seq, output)
        if is_first and output.new_token_ids and seq.add.kind != "remote":
            self._choices.take_sampled(seq)
        if output.finish_reason is None:
            self._masks.follow(seq, output.new_token_ids)
        if output.finish_reason is not None:
            self._take_end(seq, str(output.finish_reason))

    def _take_end(self, seq: VllmSequence, reason: str) -> None:
        state = self._state
        has_more = seq.next_index < seq.add.sampling.max_tokens
        has_more &= seq.request.num_tokens < self.info.max_model_len
        if seq.add.kind != "prefill":
            self._departures.end(seq.name)
        elif reason == "length" and has_more:
            return  # its one token is there; it holds its blocks until Release
        if reason in _STOP_REASONS:
            state.finish(seq.add.seq_id, _STOP_REASONS[reason], seq.next_index)
        else:
            self._choices.end(seq, is_told=True)
            state.refuse(seq.add, "overloaded", f"{self.info.engine} ended it: {reason}")

    def _fail(self, seq: VllmSequence, fault: str) -> None:
        """Its grammar is no good, nor that of the choices that wait for it."""
        self._choices.end(seq, is_told=True)
        self._departures.end_failed(seq, fault)

    def _refuse_without_room(self) -> None:
        """A remote sequence is asked once: there are blocks and rows for its prompt, or not."""
        for seq in list(self._state.seqs.values()):
            if seq.lacks_room:
                self._choices.end(seq, is_told=True)
                self._departures.end(seq.name)
                self._state.refuse(
                    seq.add, "no_room", "there are no blocks or no rows for its prompt"
                )

    def _release_received(self) -> None:
        """Let the choices go on that wait for a prompt which has come, if its reader waits or not.

        Their leader may have ended with its first token.
        """
        for name in list(self._scheduler.finished_recving_kv_req_ids):
            seq = self._state.seqs.get(name)
            if seq is not None and (seq.is_over or self._choices.has_any(seq)):
                self._scheduler.receive(seq.request)
                self._choices.release(name)
                if seq.is_over:
                    self._departures.end(name)

    # Commands.

    def _apply(self, command: Command) -> None:
        match command:
            case AddSequence():
                if self._arrivals.add(command, self._choices.num_to_run):
                    self._choices.open(command)
            case ServeAdapters(adapters=adapters):
                in_use = self._state.adapters_in_use()
                self._state.events.adapters = self._state.adapters.serve(adapters, in_use)
            case SnapshotHashes():
                self._reports.wants_snapshot = True
            case Probe():
                self._wants_probe = True
            case Abort(seq_id=seq_id) | Release(seq_id=seq_id):
                self._end(seq_id)
            case Credit(seq_id=seq_id) | Bind(seq_id=seq_id) | Start(seq_id=seq_id):
                if (seq := self._state.seqs.get(str(seq_id))) is not None:
                    self._change(seq, command)
                elif isinstance(command, Credit):
                    self._choices.credit(seq_id, command.up_to_index)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """An adapter is loaded, which takes as long as it takes, and is nobody's time."""
        self.step_index += 1
        self._page.begin_step(self.step_index, ())
        yield
        self._state.bill.skip()

    def _change(self, seq: VllmSequence, command: Credit | Bind | Start) -> None:
        match command:
            case Credit(up_to_index=index):
                seq.credit = max(seq.credit, index)
            case Bind():
                seq.is_bound = True
                rows, num_blocks = self._state.rows.rows_of(seq.add.seq_id), len(seq.block_ids)
                self._state.events.bound.append(Bound(seq.add.seq_id, rows, num_blocks))
            case Start():
                self._start(seq, command)

    def _start(self, seq: VllmSequence, command: Start) -> None:
        """The blocks of a remote sequence are in its rows; its first token may be its last."""
        self._choices.start(command)
        reason = reason_at_start(behind(seq.add, command.first_token), self.info)
        seq.take_first_token(command.first_token)
        missing = seq.block_ids[seq.num_cached_blocks :]
        rows = self._state.rows.rows_of(seq.add.seq_id)
        self._state.copies.imports.append((seq.name, rows, missing))
        if reason is None:
            self._masks.follow(seq, [command.first_token])
        else:
            seq.is_over = True
            self._state.finish(seq.add.seq_id, reason, seq.next_index)

    def _end(self, seq_id: int) -> None:
        """Give back what the front has aborted or released."""
        name = str(seq_id)
        seq = self._state.seqs.get(name)
        self._choices.drop(seq_id)
        self._departures.free(name)
        if seq is not None and seq.add.kind == "prefill":
            self._choices.end(seq, is_told=True)
        else:
            self._choices.release(name)

    # Reports.

    def _report(self) -> None:
        """Tell what has happened since the last report, as far as it may be told yet."""
        self._reports.report(self.step_index, self._choices.num_to_run, self._send)

    def _can_start(self, request: Any) -> bool:
        waits = request.status.name == "WAITING_FOR_REMOTE_KVS"
        has_come = request.request_id in self._scheduler.finished_recving_kv_req_ids
        return (has_come or not waits) and self.may_run(request)
