"""Decides what the next step computes: decodes first, then prefill chunks, then newcomers.

One token budget per step; `chunk_policy.py` says how much of it prefill may use. A sequence without
credit is parked: it keeps its blocks and stays out of the batch. When a decode needs a block and
none is left, parked sequences lose theirs first, then the least important, newest one; it goes back
to the queue and is computed again. Parked sequences also give way to a waiting one when nothing
else could run, and give up their blocks when they are parked for long (`parked.py`). Knows no
runner and no clock; arrivals, deadlines and ends are the engine's.
"""

from bisect import bisect_left, insort

from baton.engine.kv.block_manager import BlockManager
from baton.engine.sequence.sequence import ChoiceGroup, Sequence, SequenceState
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.step_plan import StepPlan, Work


class RankedList:
    """Sequences, most important first. The engine bounds how many there are."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        insort(self._items, seq, key=_rank)

    def remove(self, seq: Sequence) -> None:
        index = bisect_left(self._items, seq.rank, key=_rank)
        assert self._items[index] is seq
        del self._items[index]

    def snapshot(self) -> list[Sequence]:
        """A copy that may be walked while the list changes."""
        return self._items.copy()

    def __len__(self) -> int:
        return len(self._items)


class Scheduler:
    """The queue of waiting sequences and the set of running ones."""

    def __init__(
        self,
        manager: BlockManager,
        max_num_seqs: int,
        max_step_tokens: int,
        chunks: ChunkPolicy | None = None,
    ) -> None:
        assert max_step_tokens >= max_num_seqs, "a full batch of decodes must fit into one step"
        self.waiting = RankedList()
        self.running = RankedList()
        self._manager = manager
        self._max_num_seqs = max_num_seqs
        self._max_step_tokens = max_step_tokens
        self._chunks = chunks or ChunkPolicy(max_step_tokens, max_step_s=None)
        # What the first waiting sequence lacked at the last step: promises must leave it.
        self.num_awaited_blocks = 0
        # Whether there may be suspects, and the one whose turn it is: see `_turns`.
        self._has_suspects = False
        self._alone: str | None = None

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks that a promise must leave free, so that what is here already can go on."""
        return self._watermark() + self.num_awaited_blocks

    @property
    def num_batch_seqs(self) -> int:
        """Running sequences that are not parked."""
        return sum(seq.num_places for seq in self.running.snapshot() if not seq.is_parked)

    @property
    def num_waiting(self) -> int:
        """Waiting sequences that have readers."""
        return sum(not seq.lacks_credit for seq in self.waiting.snapshot())

    @property
    def num_waiting_choices(self) -> int:
        """The same, with those that wait for their prompts."""
        return sum(seq.num_choices for seq in self.waiting.snapshot() if not seq.lacks_credit)

    @property
    def num_parked(self) -> int:
        """Sequences that wait for their readers, with blocks or without."""
        return sum(seq.lacks_credit for seq in (*self.running.snapshot(), *self.waiting.snapshot()))

    def wait(self, seq: Sequence) -> None:
        seq.state = SequenceState.WAITING
        self.waiting.add(seq)
        self._has_suspects |= seq.runs_alone

    def run(self, seq: Sequence) -> None:
        """The sequence has its blocks and joins the batch."""
        seq.state = SequenceState.RUNNING
        self.running.add(seq)
        self._has_suspects |= seq.runs_alone

    def remove(self, seq: Sequence) -> None:
        """Forget a waiting or running sequence; others are unknown here and ignored."""
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        elif seq.state is SequenceState.RUNNING:
            self.running.remove(seq)

    def requeue(self, seq: Sequence) -> None:
        """Take a running sequence's blocks: it waits, and is computed again."""
        self.running.remove(seq)
        self._manager.free(seq)
        if seq.group is not None:
            for beam in seq.group.beams:
                self._manager.free(beam)
        self.wait(seq)

    def schedule(self) -> StepPlan:
        """Choose the next step's work. Allocates blocks; starts and preempts sequences."""
        self.num_awaited_blocks = 0
        for alone in self._turns() if self._has_suspects else (None,):
            self._alone = alone
            plan = self._plan_turn()
            if plan.works or plan.num_preemptions:
                return plan
        if self.num_awaited_blocks:
            # Nothing can run; the next step starts the first one that waits.
            plan.num_preemptions += self.displace_parked(self.num_awaited_blocks)
        return plan

    def _turns(self) -> list[str | None]:
        """Whose work to look for: a suspect request's, by itself, and everybody else's (None), in
        turn. So whoever is named when a step kills the core is the one that did it."""
        seqs = (*self.running.snapshot(), *self.waiting.snapshot())
        suspects = [seq for seq in seqs if seq.runs_alone]
        self._has_suspects = bool(suspects)
        ready = [seq.request.request_id for seq in suspects if not seq.is_parked]
        turns = [*ready[:1], None]
        return turns if self._alone is None else turns[::-1]

    def _has_turn(self, seq: Sequence) -> bool:
        if not self._has_suspects:
            return True
        if self._alone is None:
            return not seq.runs_alone
        return seq.request.request_id == self._alone

    def _plan_turn(self) -> StepPlan:
        """A step of those whose turn it is; empty when they have nothing to compute, or no room."""
        plan = StepPlan(self._max_step_tokens, self._max_num_seqs)
        running = [s for s in self.running.snapshot() if not s.is_parked and self._has_turn(s)]
        for seq in running:
            if plan.is_full:
                break
            if self._is_ready(seq, plan) and self._make_room(seq, plan):
                for member in (seq,) if seq.group is None else seq.members:
                    plan.add(member, 1)
        plan.limit_prefill(self._chunks.max_prefill_tokens(num_decodes=len(plan.works)))
        for seq in running:
            if seq.state is SequenceState.RUNNING:
                self._add_chunks(seq, plan)
        if plan.num_preemptions == 0:
            self._start_waiting(plan)
        for work in plan.works:
            if work.seq.group is not None and work.seq.group.search is None and work.completes:
                self._admit_forks(work, work.seq.group)
        return plan

    def num_queued_prefill_tokens(self) -> int:
        """Tokens that wait for, or are in, prefill or recomputation."""
        waiting = sum(seq.num_tokens for seq in self.waiting.snapshot() if not seq.lacks_credit)
        running = (seq.num_uncomputed_tokens for seq in self.running.snapshot())
        return waiting + sum(count for count in running if count > 1)

    def _start_waiting(self, plan: StepPlan) -> None:
        num_active = self.num_batch_seqs if len(self.waiting) else 0
        for seq in self.waiting.snapshot():
            if plan.is_full or num_active + seq.num_places > self._max_num_seqs:
                break
            if seq.is_parked or not self._has_turn(seq):
                continue
            if seq.judges_prompt and plan.num_judged_tokens_left == 0:
                continue
            placement = self._manager.place(seq)
            beams = seq.group.beams if seq.group is not None else ()
            num_beside = sum(self._manager.num_blocks_beside(seq, beam) for beam in beams)
            if not self._manager.can_take(placement, self._watermark() + num_beside):
                self.num_awaited_blocks = placement.num_free_needed + num_beside
                break
            self.waiting.remove(seq)
            self._manager.begin(seq, placement)
            for beam in beams:
                self._manager.begin_beside(seq, beam)
            self.run(seq)
            num_active += seq.num_places
            if not seq.was_started:
                plan.started.append(seq)
            self._add_chunk(seq, plan)

    def displace_parked(self, num_blocks: int) -> int:
        """Parked sequences must not keep a newcomer from its blocks: take as many as it lacks.

        Returns from how many sequences; from none when all of them would not be enough. They can
        spare them: their readers have not taken yet what was computed last.
        """
        parked = [seq for seq in self.running.snapshot() if seq.can_be_preempted and seq.is_parked]
        num_missing = num_blocks - self._manager.num_available_blocks
        num_displaced = 0
        if self._manager.num_blocks_of(parked) >= num_missing:
            while parked and self._lacks(num_blocks):
                self.requeue(parked.pop())
                num_displaced += 1
        return num_displaced

    def _lacks(self, num_blocks: int) -> bool:
        return num_blocks + self._watermark() > self._manager.num_available_blocks

    def _add_chunks(self, seq: Sequence, plan: StepPlan) -> None:
        """What its members lack besides their last tokens."""
        for member in (seq,) if seq.group is None else seq.members:
            if member.num_uncomputed_tokens > 1 and not plan.is_full:
                self._add_chunk(member, plan)

    def _add_chunk(self, seq: Sequence, plan: StepPlan) -> None:
        """As much as the budget allows; a chunk that is not the last ends on a full block."""
        # Beams take their last token's step together.
        num_tokens = min(seq.num_uncomputed_tokens - seq.is_beam, plan.num_tokens_left)
        if seq.judges_prompt:
            num_tokens = min(num_tokens, plan.num_judged_tokens_left)
            plan.num_judged_tokens_left -= num_tokens
            if num_tokens == 0:
                return
        if num_tokens < seq.num_uncomputed_tokens:
            num_past_block = (seq.num_computed_tokens + num_tokens) % self._manager.block_size
            num_tokens -= num_past_block if num_past_block < num_tokens else 0
        plan.add(seq, num_tokens)

    def _is_ready(self, seq: Sequence, plan: StepPlan) -> bool:
        """Whether it only lacks its last token, and the step has places for all its members."""
        if seq.group is None or seq.num_uncomputed_tokens > 0:
            return seq.num_uncomputed_tokens == 1
        members = seq.members
        is_ready = all(member.num_uncomputed_tokens == 1 for member in members)
        return is_ready and len(members) <= min(plan.num_seqs_left, plan.num_tokens_left)

    def _admit_forks(self, work: Work, group: ChoiceGroup) -> None:
        """Let forks go on from the prompt that `work` completes, as far as there is room for them.

        Each takes a place and a block. The others, and those without credit, queue.
        """
        work.forks = [fork for fork in group.forks if fork.credit > 0]
        if work.seq.request.kind == "prefill":
            return
        num_places = self._max_num_seqs - self.num_batch_seqs
        num_blocks = self._manager.num_available_blocks - self._watermark()
        del work.forks[max(0, min(num_places, num_blocks)) :]

    def _make_room(self, seq: Sequence, plan: StepPlan) -> bool:
        """Blocks for its members' next tokens; False when it had to give way itself."""
        if seq.state is not SequenceState.RUNNING:
            return False  # a more important one has just taken its blocks
        if seq.group is None and self._manager.has_grown(seq):
            return True
        members = seq.members
        while not self._manager.can_grow(members):
            victim = self._choose_victim()
            self.requeue(victim)
            plan.num_preemptions += 1
            if victim is seq:
                return False
        for member in members:
            self._manager.grow(member)
        return True

    def _choose_victim(self) -> Sequence:
        """Never one that is in the plan already: those are more important and not parked."""
        candidates = [seq for seq in self.running.snapshot() if seq.can_be_preempted]
        parked = [seq for seq in candidates if seq.is_parked]
        return (parked or candidates)[-1]

    def _watermark(self) -> int:
        """One block for each sequence, or beam, that may grow."""
        running = self.running.snapshot()
        return sum(seq.num_places for seq in running if seq.request.kind != "prefill")


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank
