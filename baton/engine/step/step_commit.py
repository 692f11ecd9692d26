"""Takes a step's results: KV that is final from now on, and what its rows of logits brought."""

import numpy as np
from numpy.typing import NDArray

from baton.engine.kv.block_audit import BlockAudit
from baton.engine.protocol.batch import RowLogprobs, StepResult
from baton.engine.protocol.device_messages import BlockChecksums
from baton.engine.protocol.messages import Progress, TokenLogprobs
from baton.engine.protocol.pooled_messages import Pooled
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.engine_state import EngineState
from baton.engine.step.parallel_sampling import ParallelSampling, Sampled
from baton.engine.step.step_plan import ScheduledSequence, StepPlan
from baton.engine.step.step_timer import StepTimer

LOOK_EVERY_STEPS = 64


class StepCommit:
    """Commits the steps of one engine."""

    def __init__(self, state: EngineState, parallel: ParallelSampling, timer: StepTimer) -> None:
        self.audit = BlockAudit(state.manager, state.sequences.block_holders)
        self._state = state
        self._parallel = parallel
        self._timer = timer
        self._was_empty = True

    def commit(self, step: int, plan: StepPlan, result: StepResult) -> None:
        """Take the result of step `step`, which ran as planned."""
        self._timer.computed(plan, self._state.events)
        if not plan.is_probe:
            self._commit_sequences(plan, result)
        self._timer.end(plan, self._state.events)
        if self._must_look(step):
            self._state.events.violations = list(self.audit.look())

    def _must_look(self, step: int) -> bool:
        """The block books are audited every so many steps, and when the last sequence has left."""
        is_empty = next(self._state.sequences.block_holders(), None) is None
        has_emptied = is_empty and not self._was_empty
        self._was_empty = is_empty
        return has_emptied or step % LOOK_EVERY_STEPS == 0

    def _commit_sequences(self, plan: StepPlan, result: StepResult) -> None:
        """Give each scheduled sequence the results of its rows; all are in the plan's order."""
        tokens, num_plain = result.tokens.tolist(), len(plan.plain)
        self._commit_plain(plan.plain, plan.seq_ids[:num_plain], tokens[:num_plain])
        of_rows = result.logprobs or [None] * len(tokens)
        results = zip(tokens[num_plain:], of_rows[num_plain:], strict=True)
        pooled_sums = iter(() if result.pooled_sums is None else result.pooled_sums)
        for scheduled in plan.sequences:
            is_held_back = self._advance(scheduled)
            if scheduled.is_pooled:
                self._take_states(scheduled, next(pooled_sums))
            sampled: list[Sampled] = []
            for row in scheduled.rows:
                token, logprobs = next(results)
                if row.forced_token is not None:
                    self._report_prompt_logprobs(scheduled.seq, token, logprobs)
                else:
                    sampled.append((token, logprobs))
            if not is_held_back:
                self._take_sampled(scheduled, sampled)
        assert next(results, None) is None, "more tokens than sample rows"
        self._state.events.num_step_seqs = len(plan.seq_ids)
        self._state.events.num_step_tokens = plan.num_query_tokens

    def _commit_plain(self, seqs: list[Sequence], seq_ids: list[int], tokens: list[int]) -> None:
        """Give each plain decode its token, unless it has ended since the step began."""
        ended = SequenceState.ENDED
        live = [place for place, seq in enumerate(seqs) if seq.state is not ended]
        if len(live) < len(seqs):
            seqs = [seqs[place] for place in live]
            seq_ids = [seq_ids[place] for place in live]
            tokens = [tokens[place] for place in live]
        self._state.take_awaited(seqs, seq_ids, tokens)

    def _advance(self, scheduled: ScheduledSequence) -> bool:
        """Count the sequence's new KV; returns whether its samples lack a mask and are dropped."""
        seq, grammars = scheduled.seq, self._state.grammars
        is_held_back = (
            seq.grammar is not None and grammars is not None and grammars.holds_back(scheduled)
        )
        # Without its last token's logits, that one is computed again.
        seq.num_computed_tokens += scheduled.num_new_tokens - is_held_back
        self._state.manager.register_full_blocks(seq)
        if seq.request.kind == "prefill":
            checksums = self._hand_over(seq)
            progress = Progress(seq.request.seq_id, seq.num_computed_tokens, checksums)
            self._state.events.progress.append(progress)
        return is_held_back

    def _hand_over(self, seq: Sequence) -> list[BlockChecksums]:
        """Copy the blocks that have become final in this step to where the front reads them; or
        return their checksums, where the peer's device reads them."""
        manager, request, table = self._state.manager, seq.request, seq.table
        is_complete = seq.num_computed_tokens >= seq.num_tokens
        num_final = seq.num_computed_tokens // manager.block_size
        if is_complete:
            num_final = manager.num_blocks_for(seq.num_tokens)
        new = range(table.num_reported, num_final)
        table.num_reported = num_final
        if request.checksum_every is not None:
            return self._checksums(seq, new, request.checksum_every)
        first = max(new.start, request.num_peer_blocks)
        block_ids = table.ids[first : new.stop].tolist()
        manager.rows.copy_out(request.seq_id, first - request.num_peer_blocks, block_ids)
        return []

    def _checksums(self, seq: Sequence, new: range, every: int) -> list[BlockChecksums]:
        """The checksums of each `every`-th block of the sequence among the new ones."""
        device = self._state.device
        assert device is not None, "the front knows whether there is one"
        indexes = range(new.start + -new.start % every, new.stop, every)
        block_ids = seq.table.ids[indexes.start : indexes.stop : every].tolist()
        sums = device.checksums(block_ids)
        return [BlockChecksums(*of_block) for of_block in zip(indexes, sums, strict=True)]

    def _report_prompt_logprobs(
        self, seq: Sequence, token: int, logprobs: RowLogprobs | None
    ) -> None:
        assert logprobs is not None, "the row asked for them"
        report = TokenLogprobs(seq.request.seq_id, seq.next_prompt_logprob, token, *logprobs)
        self._state.events.prompt_logprobs.append(report)
        seq.next_prompt_logprob += 1

    def _take_states(self, scheduled: ScheduledSequence, states: NDArray[np.float32]) -> None:
        """Add a step's states to the sequence's vector, which ends it when it is complete."""
        seq = scheduled.seq
        assert seq.pooled is not None, "its states were asked for"
        num_new = scheduled.num_new_tokens
        seq.pooled.add(states, seq.num_computed_tokens - num_new, num_new)
        if scheduled.completes:
            pooled = Pooled(seq.request.seq_id, seq.pooled.vector())
            self._state.events.pooled.append(pooled)
            self._state.finish(seq, "stop")

    def _take_sampled(self, scheduled: ScheduledSequence, sampled: list[Sampled]) -> None:
        """Give the sequence, and the forks that go on beside it, their next tokens."""
        seq = scheduled.seq
        if sampled and seq.group is not None:
            self._parallel.take_sampled(scheduled, seq.group, sampled)
        else:
            self._take_tokens(scheduled, sampled)
        if seq.grammar is not None and self._state.grammars is not None:
            for each in (seq, *scheduled.forks):
                self._state.grammars.follow(each)

    def _take_tokens(self, scheduled: ScheduledSequence, sampled: list[Sampled]) -> None:
        """Take the sampled token, then those that the draft had right."""
        seq, state = scheduled.seq, self._state
        for index, (token, logprobs) in enumerate(sampled):
            if index > 0:
                if seq.state is not SequenceState.RUNNING:
                    break
                if scheduled.draft[index - 1] != seq.last_token:
                    break
                seq.num_computed_tokens += 1
                state.manager.register_full_blocks(seq)
                state.events.num_accepted_tokens += 1
            state.take_token(seq, token, logprobs)
        state.events.num_draft_tokens += len(scheduled.draft)
