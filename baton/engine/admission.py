"""Which sequences an engine cannot serve at all, and when a sequence has reached its end.

Pure questions about one sequence and the engine's limits; room in the pool is not asked here.
"""

import numpy as np

from baton.engine.messages import AddSequence, EngineInfo, SequenceRefused
from baton.engine.sequence import Sequence
from baton.wire.failures import quoted
from baton.wire.prefix_hash import HASH_BYTES, TOKEN_BYTES


def find_fault(request: AddSequence, info: EngineInfo) -> SequenceRefused | None:
    """Why this sequence can never run here, or None."""
    num_tokens, rest = divmod(len(request.token_ids), TOKEN_BYTES)
    num_prompt_tokens = num_tokens - request.num_emitted
    if rest or request.num_emitted < 0 or num_prompt_tokens < 1:
        return _refused(request, "invalid_value", "token_ids holds no prompt of whole tokens")
    if num_prompt_tokens >= info.max_model_len:
        message = f"{num_prompt_tokens} prompt tokens leave no room in {info.max_model_len}"
        return _refused(request, "context_length_exceeded", message)
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
    return None


def finish_reason(seq: Sequence, info: EngineInfo) -> str | None:
    """Whether the output token just appended ends the sequence: "stop", "length" or None."""
    sampling, token = seq.request.sampling, seq.last_token
    if token in sampling.stop_token_ids:
        return "stop"
    if token in info.eos_token_ids and not sampling.ignore_eos:
        return "stop"
    return "length" if is_exhausted(seq, info) else None


def is_exhausted(seq: Sequence, info: EngineInfo) -> bool:
    """No further output token may follow."""
    has_all_tokens = seq.num_output_tokens >= seq.request.sampling.max_tokens
    return has_all_tokens or seq.num_tokens >= info.max_model_len


def max_total_tokens(seq: Sequence, info: EngineInfo) -> int:
    """Prompt and output tokens that the sequence can ever have."""
    return min(seq.num_prompt_tokens + seq.request.sampling.max_tokens, info.max_model_len)


def _refused(request: AddSequence, reason: str, message: str) -> SequenceRefused:
    return SequenceRefused(request.seq_id, reason, message)
