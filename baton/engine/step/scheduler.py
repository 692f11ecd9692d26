"""Decides what the next step computes: decodes first, then prefill chunks, then newcomers. A prompt
goes before less important ones that have begun.

One token budget per step; `chunk_policy.py` says how much of it prefill may use. A sequence without
credit is parked: it keeps its blocks and stays out of the batch. When a decode needs a block and
none is left, parked sequences lose theirs first, then the least important, newest one; it goes back
to the queue and is computed again. Where more decode than a step has places for, those that miss it
go first in one step of MAX_MISSED. Parked sequences also give way to a waiting one when nothing
else could run, and give up their blocks when they are parked for long (`step_planner.py`).
Knows no runner and no clock; arrivals, deadlines and ends are the engine's.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import islice

from baton.engine.kv.block_manager import BlockManager
from baton.engine.sequence.sequence import Sequence, SequenceGroup, SequenceState
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.step_plan import ScheduledSequence, StepPlan

# The steps in a row that a sequence misses at most for want of a place, unless most miss them.
MAX_MISSED = 8


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

    def has_more_important(self, seq: Sequence) -> bool:
        """Return whether the first one is more important than `seq`, whichever came first."""
        return bool(self._items) and self._items[0].rank[:2] < seq.rank[:2]

    def snapshot(self) -> list[Sequence]:
        """A copy that may be walked while the list changes."""
        return self._items.copy()

    def __len__(self) -> int:
        return len(self._items)


@dataclass(slots=True)
class QueueLoad:
    """The sequences of a scheduler, counted.

    `num_waiting` has the forks too that wait for their prompt; parked sequences wait for readers,
    with blocks or without, and are not in it. Prefill tokens wait for, or are in, prefill or
    recomputation.
    """

    num_running: int
    num_waiting: int = 0
    num_parked: int = 0
    num_prefill_tokens: int = 0


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
        # Blocks that the first waiting sequence lacked at the last step: promises must leave them.
        self.num_awaited_blocks = 0
        # There may be suspects; and the one that has its turn (see `_turns`).
        self._has_suspects = False
        self._alone: str | None = None
        # Decodes for which the last step had no place, and the steps that left any out.
        self._left_out: list[Sequence] = []
        self._num_short_steps = 0

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks that a promise must leave free, so that what is here already can go on."""
        return self._watermark() + self.num_awaited_blocks

    @property
    def num_batch_seqs(self) -> int:
        """Running sequences that are not parked."""
        return sum(seq.num_batch_slots for seq in self.running.snapshot() if not seq.is_parked)

    @property
    def num_waiting(self) -> int:
        """Waiting sequences that have readers."""
        return sum(not seq.lacks_credit for seq in self.waiting.snapshot())

    def wait(self, seq: Sequence) -> None:
        seq.state = SequenceState.WAITING
        self.waiting.add(seq)
        self._has_suspects |= seq.runs_alone
        if seq.request.is_quiet:
            self._chunks.shorten()

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
        beams = () if seq.group is None else seq.group.beams
        for each in (seq, *beams):
            each.num_lost_tokens = max(each.num_lost_tokens, each.num_computed_tokens)
            self._manager.free(each)
        self.wait(seq)

    def schedule(self) -> StepPlan:
        """Choose what the next step computes. Allocates blocks; starts and preempts sequences."""
        self.num_awaited_blocks = 0
        for alone in self._turns() if self._has_suspects else (None,):
            self._alone = alone
            plan = self._plan_turn()
            if plan.has_work:
                return plan
        if self.num_awaited_blocks:
            # Nothing can run; the next step starts the first one that waits.
            plan.num_preemptions += self.displace_parked(self.num_awaited_blocks)
        return plan

    def _turns(self) -> list[str | None]:
        """The requests to plan for, in turn: a suspect one by itself, and all others (None).

        So a step that kills the core names the one request that did it.
        """
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
        """Plan the sequences that have their turn; empty without work or room for them."""
        plan = StepPlan(self._max_step_tokens, self._max_num_seqs)
        prefilling = self._add_decodes(plan)
        may_lengthen = self._may_lengthen(prefilling)
        plan.limit_prefill(self._chunks.max_prefill_tokens(plan.num_decodes, may_lengthen))
        for seq in prefilling:
            if seq.state is SequenceState.RUNNING:
                if plan.num_preemptions == 0 and self.waiting.has_more_important(seq):
                    self._start_waiting(plan, before=seq)
                if not plan.is_closed_to(seq):
                    self._add_chunks(seq, plan)
        if plan.num_preemptions == 0:
            self._start_waiting(plan)
        for scheduled in plan.sequences:
            group = scheduled.seq.group
            if group is not None and group.search is None and scheduled.completes:
                self._admit_forks(scheduled, group)
        return plan

    def _may_lengthen(self, prefilling: list[Sequence]) -> bool:
        """Streams may wait longer for the prompt that is read next: it becomes a stream, too, and
        none has a higher priority."""
        waiting = (seq for seq in self.waiting.snapshot() if not seq.is_parked)
        prompts = [*prefilling[:1], *islice(waiting, 1)]
        if not prompts:
            return True
        prompt = min(prompts, key=_rank)
        streams = (seq for seq in self.running.snapshot() if not seq.is_parked)
        return prompt.will_decode and next(streams, prompt).rank[0] >= prompt.rank[0]

    def has_plain_decodes_only(self) -> bool:
        """The next step surely has nothing else to compute."""
        if self._has_suspects:
            return False
        running = [seq for seq in self.running.snapshot() if not seq.is_parked]
        is_full = len(running) >= self._max_num_seqs
        if not is_full and any(not seq.is_parked for seq in self.waiting.snapshot()):
            return False
        return all(
            seq.is_plain and seq.group is None and seq.num_uncomputed_tokens == 1 for seq in running
        )

    def load(self) -> QueueLoad:
        """Count the sequences that run and wait."""
        load = QueueLoad(num_running=len(self.running))
        for seq in self.running.snapshot():
            # Most have credit beyond all that they await.
            if seq.num_tokens - seq.num_prompt_tokens >= seq.credit and seq.lacks_credit:
                load.num_parked += 1
            num_tokens = seq.num_tokens - seq.num_computed_tokens
            if num_tokens > 1:
                load.num_prefill_tokens += num_tokens
        for seq in self.waiting.snapshot():
            if seq.lacks_credit:
                load.num_parked += 1
            else:
                load.num_waiting += seq.num_choices
                load.num_prefill_tokens += seq.num_tokens
        return load

    def _add_decodes(self, plan: StepPlan) -> list[Sequence]:
        """Plan the sequences that lack only their last token; returns those that lack more."""
        running, block_size = self.running.snapshot(), self._manager.block_size
        if self._has_suspects:
            running = [seq for seq in running if self._has_turn(seq)]
        if self._left_out:
            running = self._with_turns(running)
        plain, prefilling, num_left = plan.plain, [], plan.max_seqs
        for place, seq in enumerate(running):
            if num_left == 0:
                self._left_out = [each for each in running[place:] if not each.is_parked]
                break
            if seq.is_plain_decode(block_size):
                plain.append(seq)
                num_left -= 1
            elif seq.is_parked:
                continue
            elif not self._is_ready(seq, plan):
                prefilling.append(seq)
            elif self._make_room(seq, plan):
                if seq.is_plain and seq.group is None:
                    plain.append(seq)
                else:
                    for member in (seq,) if seq.group is None else seq.members:
                        plan.add(member, 1)
                num_left = plan.num_seqs_left
        return prefilling

    def _with_turns(self, running: list[Sequence]) -> list[Sequence]:
        """Those that run, in the order of this step."""
        left_out, self._left_out = set(map(id, self._left_out)), []
        self._num_short_steps += 1
        if self._num_short_steps % MAX_MISSED:
            return running
        return sorted(running, key=lambda seq: id(seq) not in left_out)

    def _start_waiting(self, plan: StepPlan, before: Sequence | None = None) -> None:
        """Start the sequences for which there is room, or those more important than `before`."""
        num_active = self.num_batch_seqs if len(self.waiting) else 0
        for seq in self.waiting.snapshot():
            if before is not None and seq.rank[:2] >= before.rank[:2]:
                break
            if plan.is_full or num_active + seq.num_batch_slots > self._max_num_seqs:
                break
            if plan.is_closed_to(seq):
                break
            if seq.is_parked or not self._has_turn(seq):
                continue
            if seq.wants_prompt_logprobs and plan.num_prompt_logprobs_left == 0:
                continue
            match = self._manager.match_prefix(seq)
            beams = seq.group.beams if seq.group is not None else ()
            num_beside = sum(self._manager.num_blocks_beside(seq, beam) for beam in beams)
            if not self._manager.has_rows_for(seq):
                break  # it goes first when others have been handed over
            if not self._manager.can_allocate(match, self._watermark() + num_beside):
                self.num_awaited_blocks = match.num_free_needed + num_beside
                break
            self.waiting.remove(seq)
            self._manager.allocate(seq, match)
            for beam in beams:
                self._manager.allocate_beside(seq, beam)
            self.run(seq)
            num_active += seq.num_batch_slots
            if not seq.was_started:
                plan.started.append(seq)
            self._add_chunk(seq, plan)

    def displace_parked(self, num_blocks: int) -> int:
        """Take from parked sequences as many blocks as a newcomer lacks.

        Returns from how many sequences; from none when all of them would not be enough. They can
        spare the blocks: their readers have not taken yet what was computed last.
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
        """Plan what its members lack besides their last tokens."""
        for member in (seq,) if seq.group is None else seq.members:
            if member.num_uncomputed_tokens > 1 and not plan.is_full:
                self._add_chunk(member, plan)

    def _add_chunk(self, seq: Sequence, plan: StepPlan) -> None:
        """Plan as much as the budget allows; a chunk that is not the last ends on a full block."""
        # Beams take their last token's step together.
        num_tokens = min(seq.num_uncomputed_tokens - seq.is_beam, plan.num_tokens_left)
        if seq.wants_prompt_logprobs:
            num_tokens = min(num_tokens, plan.num_prompt_logprobs_left)
            plan.num_prompt_logprobs_left -= num_tokens
            if num_tokens == 0:
                return
        if num_tokens < seq.num_uncomputed_tokens:
            num_past_block = (seq.num_computed_tokens + num_tokens) % self._manager.block_size
            num_tokens -= num_past_block if num_past_block < num_tokens else 0
        plan.add(seq, num_tokens)

    def _is_ready(self, seq: Sequence, plan: StepPlan) -> bool:
        """It only lacks its last token, and the step has slots for all its members."""
        if seq.group is None or seq.num_uncomputed_tokens > 0:
            return seq.num_uncomputed_tokens == 1
        members = seq.members
        is_ready = all(member.num_uncomputed_tokens == 1 for member in members)
        return is_ready and len(members) <= min(plan.num_seqs_left, plan.num_tokens_left)

    def _admit_forks(self, scheduled: ScheduledSequence, group: SequenceGroup) -> None:
        """Let forks go on from the prompt that this step completes, as far as there is room.

        Each takes a batch slot and a block. The others, and those without credit, queue.
        """
        scheduled.forks = forks = [fork for fork in group.forks if fork.credit > 0]
        if scheduled.seq.request.kind == "prefill":
            return
        num_free_slots = self._max_num_seqs - self.num_batch_seqs
        num_blocks = self._manager.num_available_blocks - self._watermark()
        del forks[max(0, min(num_free_slots, num_blocks)) :]

    def _make_room(self, seq: Sequence, plan: StepPlan) -> bool:
        """Get blocks for its members' next tokens; False when it had to give way itself."""
        if seq.state is not SequenceState.RUNNING:
            return False  # a more important one has just taken its blocks
        if self._has_slots(seq):
            return True
        members = seq.members
        while not self._manager.can_grow(members):
            victim = self._choose_victim(plan)
            self.requeue(victim)
            plan.num_preemptions += 1
            if victim is seq:
                return False
        for member in members:
            self._manager.grow(member)
        return True

    def _has_slots(self, seq: Sequence) -> bool:
        """The KV of its next tokens surely has slots: the quick answer for most steps."""
        if seq.group is None:
            return self._manager.has_grown(seq)
        # A prompt that is computed again: its beams hold its blocks already, and will read them.
        return bool(seq.group.beams) and seq.num_uncomputed_tokens > 0

    def _choose_victim(self, plan: StepPlan) -> Sequence:
        """Choose the sequence to preempt, which is not planned."""
        planned = set(map(id, plan.all))
        candidates = [
            seq
            for seq in self.running.snapshot()
            if seq.can_be_preempted
            and planned.isdisjoint(map(id, (seq,) if seq.group is None else seq.members))
        ]
        parked = [seq for seq in candidates if seq.is_parked]
        return (parked or candidates)[-1]

    def _watermark(self) -> int:
        """One block for each sequence, or beam, that may grow."""
        running = self.running.snapshot()
        return sum(seq.num_batch_slots for seq in running if seq.request.kind != "prefill")


def _rank(seq: Sequence) -> tuple[int, bool, int]:
    return seq.rank
