"""A step, sequence by sequence: what it computes of each, and what the front is told of it."""

from collections.abc import Iterator
from typing import Any

from baton.engine.protocol.messages import Progress, Started, TokenLogprobs
from baton.engines.vllm.ranks.connector import StepCopies
from baton.engines.vllm.sequences import VllmSequence
from baton.engines.vllm.state import VllmState
from baton.engines.vllm.step_bill import Share


class StepParts:
    """The parts of one engine's steps; `shares` are those of the newest."""

    def __init__(self, state: VllmState) -> None:
        self.shares: list[Share] = []
        # Remote sequences whose rows the newest step reads.
        self._imported: list[str] = []
        # Drafted tokens, by request, of the newest step.
        self._drafts: dict[str, list[int]] = {}
        self._state = state
        self._block_size = state.info.kv_spec.block_size

    def take(self, scheduled: Any) -> StepCopies:
        """The step was scheduled: what it has to copy."""
        state = self._state
        copies, state.copies = state.copies, StepCopies()
        self.shares = []
        self._imported = [name for name, _, _ in copies.imports]
        self._drafts = scheduled.scheduled_spec_decode_tokens
        for name, num_tokens in scheduled.num_scheduled_tokens.items():
            if (seq := state.seqs.get(name)) is not None:
                self._take_part(seq, num_tokens, copies)
        return copies

    def note_progress(self) -> None:
        """The step is over: give the rows back that it has read, and tell which blocks of prefills
        are final.

        Such a sequence has started for the front when its first blocks are in their rows.
        """
        state, size = self._state, self._block_size
        for name in self._imported:
            state.rows.free(int(name))
        for share in self.shares:
            seq = state.seqs.get(str(share.seq_id))
            if seq is None or seq.add.kind != "prefill" or seq.is_over:
                continue
            request = seq.request
            if not seq.block_ids:
                seq.block_ids = state.table(seq)
                rows, num_cached = state.rows.rows_of(share.seq_id), seq.num_cached_blocks * size
                started = Started(share.seq_id, rows, num_cached, len(seq.block_ids))
                state.events.started.append(started)
            num_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            state.events.progress.append(Progress(share.seq_id, num_tokens))

    def take_tokens(self, seq: VllmSequence, output: Any) -> None:
        """Tell a sequence's new tokens, with the logprobs that it asked for."""
        events, sampling, seq_id = self._state.events, seq.add.sampling, seq.add.seq_id
        lists, tensors = output.new_logprobs, output.new_prompt_logprobs_tensors
        if lists is not None and sampling.num_logprobs is not None:
            ids, values = lists.logprob_token_ids, lists.logprobs
            num_tops, first = sampling.num_logprobs, seq.next_index
            events.logprobs += _entries(seq_id, first, num_tops, ids.tolist(), values.tolist())
        if tensors is not None and sampling.num_prompt_logprobs is not None:
            ids, values, ranks = (
                each.tolist()
                for each in (
                    tensors.logprob_token_ids, tensors.logprobs, tensors.selected_token_ranks
                )
            )  # fmt: skip
            num_tops = sampling.num_prompt_logprobs
            # The first prompt token has none.
            entries = _entries(seq_id, 1, num_tops, ids, values)
            for entry, rank in zip(entries, ranks, strict=True):
                entry.rank = rank
                events.prompt_logprobs.append(entry)
        if draft := self._drafts.get(seq.name):
            events.num_draft_tokens += len(draft)
            events.num_accepted_tokens += len(output.new_token_ids) - 1
        for token in output.new_token_ids:
            self._state.take_token(seq_id, token, seq.next_index)
            seq.next_index += 1

    def _take_part(self, seq: VllmSequence, num_tokens: int, copies: StepCopies) -> None:
        """The sequence is in the step that was just scheduled."""
        request, seq_id = seq.request, seq.add.seq_id
        start, size = request.num_computed_tokens, self._block_size
        table = self._state.table(seq)
        num_own = num_tokens - len(self._drafts.get(seq.name, ()))
        is_whole = start + num_own == request.num_tokens
        is_prefill = num_own > 1 or not is_whole or not seq.is_started
        is_redone = is_prefill and seq.is_started and request.num_preemptions > 0
        self.shares.append(Share(seq_id, num_tokens, len(table), is_prefill, is_redone))
        if seq.add.kind == "prefill":
            # Also those that were cached: a local sequence may have computed them.
            num_peer, end = seq.add.num_peer_blocks, -(-(start + num_tokens) // size)
            first = max(num_peer, start // size if seq.is_started else 0)
            rows = self._state.rows.rows_of(seq_id)[first - num_peer :]
            copies.exports += zip(table[first:end], rows, strict=False)
        if not seq.is_started:
            seq.is_started = True
            seq.num_cached_blocks = start // size
            if seq.add.kind == "local":
                self._state.events.started.append(Started(seq_id, [], start, len(table)))


def _entries(
    seq_id: int, first_index: int, num_tops: int, ids: list[list[int]], values: list[list[float]]
) -> Iterator[TokenLogprobs]:
    """A row is the token's own logprob and then those of the likeliest tokens, as many as any
    request of the batch wants."""
    rows = zip(ids, values, strict=True)
    for index, (row_ids, row_values) in enumerate(rows, first_index):
        tops = slice(1, 1 + num_tops)
        yield TokenLogprobs(
            seq_id, index, row_ids[0], row_values[0], row_ids[tops], row_values[tops]
        )
