"""Takes a step's results: KV that is final from now on, and what its rows of logits brought."""

from baton.engine.protocol.batch import RowLogprobs, StepResult
from baton.engine.protocol.device_messages import BlockChecksums
from baton.engine.protocol.messages import Progress, TokenLogprobs
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.engine_state import EngineState
from baton.engine.step.parallel_sampling import Choices, Sampled
from baton.engine.step.step_plan import Work


class StepCommit:
    """Of one engine."""

    def __init__(self, state: EngineState, choices: Choices) -> None:
        self._state = state
        self._choices = choices

    def commit(self, works: list[Work], result: StepResult) -> None:
        """`works` ran with their rows, whose results `result` holds in order."""
        tokens = iter(result.tokens.tolist())
        logprobs = iter(result.logprobs or [None] * len(result.tokens))
        for work in works:
            seq = work.seq
            grammars = self._state.grammars if seq.grammar is not None else None
            is_held_back = grammars is not None and grammars.holds_back(work)
            # Without its last token's logits, that one is computed again.
            seq.num_computed_tokens += work.num_new_tokens - is_held_back
            self._state.manager.register_full_blocks(seq)
            if seq.request.kind == "prefill":
                checksums = self._new_checksums(seq) if seq.request.checksum_every else []
                progress = Progress(seq.request.seq_id, seq.num_computed_tokens, checksums)
                self._state.events.progress.append(progress)
            sampled: list[Sampled] = []
            for row in work.rows:
                token, token_logprobs = next(tokens), next(logprobs)
                if row.forced_token >= 0:
                    self._take_judged(seq, token, token_logprobs)
                else:
                    sampled.append((token, token_logprobs))
            if is_held_back:
                continue
            if sampled and seq.group is not None:
                self._choices.take_sampled(work, seq.group, sampled)
            else:
                self._take_sampled(work, sampled)
            if grammars is not None:
                for each in (seq, *work.forks):
                    grammars.follow(each)
        assert next(tokens, None) is None, "more tokens than sample rows"

    def _new_checksums(self, seq: Sequence) -> list[BlockChecksums]:
        """Of every so many-th block that is final now and was not before."""
        device, manager = self._state.device, self._state.manager
        assert device is not None, "the front knows whether there is one"
        is_complete = seq.num_computed_tokens >= seq.num_tokens
        num_final = seq.num_computed_tokens // manager.block_size
        if is_complete:
            num_final = manager.num_blocks_for(seq.num_tokens)
        every, first = seq.request.checksum_every, seq.num_told_blocks
        indexes = range(first + -first % every, num_final, every)
        seq.num_told_blocks = num_final
        block_ids = seq.table.ids[indexes.start : indexes.stop : every].tolist()
        sums = device.checksums(block_ids)
        return [BlockChecksums(*of_block) for of_block in zip(indexes, sums, strict=True)]

    def _take_judged(self, seq: Sequence, token: int, logprobs: RowLogprobs | None) -> None:
        """A prompt token whose logprobs were wanted."""
        assert logprobs is not None
        judged = TokenLogprobs(seq.request.seq_id, seq.num_judged_tokens, token, *logprobs)
        self._state.events.prompt_logprobs.append(judged)
        seq.num_judged_tokens += 1

    def _take_sampled(self, work: Work, sampled: list[Sampled]) -> None:
        """The sampled token, then those that the draft had right."""
        seq, state = work.seq, self._state
        for index, (token, logprobs) in enumerate(sampled):
            if index > 0:
                if seq.state is not SequenceState.RUNNING:
                    break
                if work.draft[index - 1] != seq.last_token:
                    break
                seq.num_computed_tokens += 1
                state.manager.register_full_blocks(seq)
                state.events.num_accepted += 1
            state.take_token(seq, token, logprobs)
        state.events.num_drafted += len(work.draft)
