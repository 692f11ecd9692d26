"""Finds sequences that an engine cannot serve at all, and the end of those that it serves.

Pure questions about one sequence and the engine's limits; room in the pool is not asked here.
"""

import msgspec
import numpy as np

from baton.engine.protocol.messages import AddSequence, EngineInfo, SamplingParams, SequenceRefused
from baton.engine.protocol.reasons import RefusalReason, StopReason
from baton.engine.sequence.beam_search import num_top
from baton.engine.sequence.sequence import Sequence
from baton.wire.failures import quoted
from baton.wire.prefix_hash import HASH_BYTES, TOKEN_BYTES

# By whether a vector is wanted: why the model cannot give what is.
_POOLING_FAULTS: dict[bool, tuple[RefusalReason, str]] = {
    True: ("not_an_embedding_model", "the model generates text and gives no vectors"),
    False: ("not_a_text_model", "the model gives vectors and no text"),
}


def find_fault(request: AddSequence, info: EngineInfo) -> SequenceRefused | None:
    """Find the reason for which this sequence can never run here, or None."""
    num_tokens, rest = divmod(len(request.token_ids), TOKEN_BYTES)
    num_prompt_tokens = num_tokens - request.num_emitted
    if rest or request.num_emitted < 0 or num_prompt_tokens < 1:
        return _refused(request, "invalid_value", "token_ids holds no prompt of whole tokens")
    # A first token needs no room: it is kept only when a second one follows.
    is_last = request.sampling.max_tokens == 1 and not request.forks
    if num_prompt_tokens >= info.max_model_len + is_last:
        message = f"{num_prompt_tokens} prompt tokens leave no room in {info.max_model_len}"
        return _refused(request, "context_length_exceeded", message)
    if request.pools != (info.pooling is not None):
        return _refused(request, *_POOLING_FAULTS[request.pools])
    if request.pools and (request.kind != "local" or request.num_emitted or request.forks):
        return _refused(request, "invalid_value", "a vector is of one local prompt")
    if request.adapter and not info.num_adapter_slots:
        message = f"model: its adapter is not served by this engine ({info.engine})"
        return _refused(request, "unsupported_parameter", message)
    largest = int(np.frombuffer(request.token_ids, "<u4").max())
    if largest >= info.vocab_size:
        message = f"token id {quoted(largest)} is not below {info.vocab_size}"
        return _refused(request, "invalid_token_id", message)
    named = [*request.sampling.stop_token_ids, *(id for id, _ in request.sampling.logit_bias)]
    if named and not 0 <= min(named) <= max(named) < info.vocab_size:
        message = f"a stop or biased token id is not below {info.vocab_size}"
        return _refused(request, "invalid_token_id", message)
    num_hashes, rest = divmod(len(request.block_hashes), HASH_BYTES)
    if rest or num_hashes > num_prompt_tokens // info.kv_spec.block_size:
        return _refused(request, "invalid_value", "block_hashes does not fit the prompt")
    if request.forks and request.num_emitted:
        return _refused(request, "invalid_value", "forks have no output of earlier attempts")
    if request.sampling.grammar is not None and info.tokenizer_file is None:
        message = "this worker cannot serve structured output for its model"
        return _refused(request, "unsupported_parameter", message)
    return _find_beam_fault(request, info) if request.sampling.beam_width else None


def _find_beam_fault(request: AddSequence, info: EngineInfo) -> SequenceRefused | None:
    """The same for a beam search. Alone in the pool it must fit."""
    params = request.sampling
    if num_top(params, end_ids(params, info)) > info.vocab_size:
        message = f"{params.beam_width} beams exceed {info.vocab_size} tokens"
        return _refused(request, "invalid_value", message)
    if request.kind == "prefill":
        return None
    if request.num_emitted or len(request.forks) != params.beam_width - 1:
        message = "a beam search starts anew, with one sequence for each result"
        return _refused(request, "invalid_value", message)
    if params.beam_width > info.max_num_seqs:
        message = f"{params.beam_width} beams exceed {info.max_num_seqs} places: lower n"
        return _refused(request, "invalid_value", message)
    num_blocks = _most_beam_blocks(request, info)
    if num_blocks > info.num_blocks:
        message = f"the beams may need {num_blocks} blocks of {info.num_blocks}"
        return _refused(request, "invalid_value", f"{message}: lower max_tokens or n")
    return None


def _most_beam_blocks(request: AddSequence, info: EngineInfo) -> int:
    """The blocks of all beams when they share nothing but the prompt, which the leader keeps."""
    num_prompt_tokens = len(request.token_ids) // TOKEN_BYTES
    num_tokens = min(num_prompt_tokens + request.sampling.max_tokens, info.max_model_len)
    num_shared, rest = divmod(num_prompt_tokens, info.kv_spec.block_size)
    num_own = info.kv_spec.num_blocks_for(num_tokens) - num_shared
    return num_shared + bool(rest) + request.sampling.beam_width * num_own


def with_beam_logprobs(request: AddSequence, info: EngineInfo) -> AddSequence:
    """The request, which asks for the logprobs that a beam search needs if it is one."""
    params = request.sampling
    if not params.beam_width:
        return request
    num_logprobs = num_top(params, end_ids(params, info))
    sampling = msgspec.structs.replace(params, num_logprobs=num_logprobs, temperature=0.0)
    return msgspec.structs.replace(request, sampling=sampling)


def end_ids(params: SamplingParams, info: EngineInfo) -> frozenset[int]:
    """Tokens after which an output ends."""
    return frozenset(params.stop_token_ids).union(() if params.ignore_eos else info.eos_token_ids)


def finish_reason(seq: Sequence, token: int, info: EngineInfo) -> StopReason | None:
    """The reason for which `token`, the last one, ends the sequence: "stop", "length" or None.

    A beam search decides that by itself.
    """
    sampling = seq.request.sampling
    if sampling.beam_width:
        return None
    if token in sampling.stop_token_ids:
        return "stop"
    # Nothing but the end may follow what completes a grammar.
    if token in info.eos_token_ids and (not sampling.ignore_eos or sampling.grammar is not None):
        return "stop"
    return "length" if is_exhausted(seq, info) else None


def reason_at_start(seq: Sequence, info: EngineInfo) -> StopReason | None:
    """The reason to end at once: an earlier attempt emitted all tokens, and its end was lost."""
    if seq.request.num_emitted:
        return finish_reason(seq, seq.last_token, info)
    return None if seq.request.sampling.max_tokens else "length"


def is_exhausted(seq: Sequence, info: EngineInfo) -> bool:
    """No further output token may follow the last one."""
    return seq.num_tokens - seq.num_awaited >= max_total_tokens(seq, info)


def max_total_tokens(seq: Sequence, info: EngineInfo) -> int:
    """Prompt and output tokens that the sequence can ever have."""
    return min(seq.num_prompt_tokens + seq.request.sampling.max_tokens, info.max_model_len)


def _refused(request: AddSequence, reason: RefusalReason, message: str) -> SequenceRefused:
    return SequenceRefused(request.seq_id, reason, message)
