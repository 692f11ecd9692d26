"""Runs what a first request would have to wait for, before the worker announces itself.

vLLM compiles parts of a step when they are used first, for seconds: logprobs among them.
"""

from baton.engine.protocol.messages import AddSequence, SamplingParams, StepEvents
from baton.engine.protocol.progress_page import PAGE_BYTES, ProgressPage
from baton.engines.vllm.engine import VllmEngine
from baton.wire.prefix_hash import CACHE_KEY_BYTES

_NUM_PROMPT_TOKENS = 40
# Of each kind so many at once: one row and several may be compiled apart.
_BATCHES = (1, 3)


def warm_up(engine: VllmEngine) -> None:
    """Sample in every way until nothing runs; the engine is as new then, but for its pace."""
    num_seqs = 0
    for number in _BATCHES:
        adds = [_add(num_seqs + i, sampling) for i, sampling in enumerate(_KINDS * number)]
        num_seqs += len(adds)
        _run(engine, adds)
    engine.forget_prefixes()


_KINDS = (
    SamplingParams(max_tokens=4, ignore_eos=True),
    SamplingParams(max_tokens=4, temperature=1.0, top_p=0.9, top_k=20, ignore_eos=True),
    SamplingParams(max_tokens=4, num_logprobs=2, presence_penalty=0.5, ignore_eos=True),
    SamplingParams(max_tokens=4, num_logprobs=0, num_prompt_logprobs=2, ignore_eos=True),
)


def _add(number: int, sampling: SamplingParams) -> AddSequence:
    ids = range(number, number + _NUM_PROMPT_TOKENS)
    return AddSequence(
        seq_id=-1 - number,  # the front's are above 0
        request_id="",
        choice=0,
        kind="local",
        token_ids=b"".join(token.to_bytes(4, "little") for token in ids),
        num_emitted=0,
        block_hashes=b"",
        cache_key=bytes(CACHE_KEY_BYTES),
        sampling=sampling,
        credit=sampling.max_tokens,
    )


def _run(engine: VllmEngine, adds: list[AddSequence]) -> None:
    page = ProgressPage(bytearray(PAGE_BYTES))
    refused: list[StepEvents] = []

    def note(events: StepEvents) -> None:
        if events.refused:
            refused.append(events)

    engine.turn(adds, page, note)
    while engine.has_work:
        engine.turn((), page, note)
    assert not refused, refused
