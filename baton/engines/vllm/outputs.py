"""What vLLM has sampled, as the front is told: tokens, and their logprobs."""

from collections.abc import Iterator
from typing import Any

from baton.engine.protocol.messages import StepEvents, TokenLogprobs
from baton.engines.vllm.sequences import VllmSequence


def take_tokens(seq: VllmSequence, output: Any, events: StepEvents) -> None:
    """Add a sequence's new tokens to the events of a step, with the logprobs that it asked for."""
    sampling, seq_id = seq.add.sampling, seq.add.seq_id
    lists, tensors = output.new_logprobs, output.new_prompt_logprobs_tensors
    if lists is not None and sampling.num_logprobs is not None:
        ids, values = lists.logprob_token_ids, lists.logprobs
        events.logprobs += _entries(seq_id, seq.next_index, sampling.num_logprobs, ids, values)
    if tensors is not None and sampling.num_prompt_logprobs is not None:
        ids, values = tensors.logprob_token_ids.cpu().numpy(), tensors.logprobs.cpu().numpy()
        # The first prompt token has none.
        events.prompt_logprobs += _entries(seq_id, 1, sampling.num_prompt_logprobs, ids, values)
    for token in output.new_token_ids:
        events.token_seq_ids.append(seq_id)
        events.token_ids.append(token)
        events.token_indexes.append(seq.next_index)
        seq.next_index += 1


def _entries(
    seq_id: int, first_index: int, num_tops: int, ids: Any, values: Any
) -> Iterator[TokenLogprobs]:
    """A row is the token's own logprob and then those of the likeliest tokens, as many as any
    request of the batch wants."""
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    for index, (row_ids, row_values) in enumerate(rows, first_index):
        tops = slice(1, 1 + num_tops)
        yield TokenLogprobs(
            seq_id, index, row_ids[0], row_values[0], row_ids[tops], row_values[tops]
        )
