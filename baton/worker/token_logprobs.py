"""Logprobs of tokens from the engine to the wire."""

from baton.engine.protocol.messages import TokenLogprobs
from baton.wire.v1 import worker_pb2


def to_wire(told: TokenLogprobs) -> worker_pb2.TokenLogprobs:
    """Without the token's id, which its index tells."""
    return worker_pb2.TokenLogprobs(
        index=told.index,
        logprob=told.logprob,
        top_ids=told.top_ids,
        top_logprobs=told.top_logprobs,
    )
