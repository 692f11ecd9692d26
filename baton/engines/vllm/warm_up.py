"""Runs what a first request would have to wait for, before the worker announces itself.

vLLM compiles parts of a step when they are used first, for seconds: logprobs among them. From then
on every step has an expected time, so that a core which stands still in its first one is found.
"""

import os

from baton.engine.process.core import CoreEngine
from baton.engine.protocol.messages import (
    AddSequence,
    Bind,
    Command,
    Probe,
    Release,
    SamplingParams,
    SequenceKind,
    Start,
    StepEvents,
)
from baton.engine.protocol.progress_page import PAGE_BYTES, ProgressPage
from baton.wire.prefix_hash import CACHE_KEY_BYTES

_NUM_PROMPT_TOKENS = 40
_NUM_REPEATED = 8
# Of each kind so many at once: one row and several may be compiled apart.
_BATCHES = (1, 3)
_KINDS = (
    SamplingParams(max_tokens=4, ignore_eos=True),
    SamplingParams(max_tokens=4, temperature=1.0, ignore_eos=True),
    SamplingParams(max_tokens=4, temperature=1.0, top_p=0.9, top_k=20, ignore_eos=True),
    SamplingParams(max_tokens=4, num_logprobs=2, presence_penalty=0.5, ignore_eos=True),
    SamplingParams(max_tokens=4, num_logprobs=0, num_prompt_logprobs=2, ignore_eos=True),
)


def warm_up(engine: CoreEngine) -> None:
    """Sample in every way, hand a prompt over, and probe. Its prefixes stay in the cache."""
    num_seqs = 0
    for number in _BATCHES:
        adds = [_add(num_seqs + i, sampling) for i, sampling in enumerate(_KINDS * number)]
        num_seqs += len(adds)
        _run(engine, *adds)
    _hand_over(engine, num_seqs)
    _run(engine, Probe())


def _hand_over(engine: CoreEngine, number: int) -> None:
    """Prefill a prompt, and go on with it as if another worker had: whatever is in its rows."""
    held = _add(number, _KINDS[0], "prefill")
    (first_token,) = (token for told in _run(engine, held) for token in told.token_ids)
    _run(engine, Release(held.seq_id))
    remote = _add(number, _KINDS[0], "remote")
    _run(engine, remote)
    _run(engine, Bind(remote.seq_id))
    _run(engine, Start(remote.seq_id, first_token))


def _add(number: int, sampling: SamplingParams, kind: SequenceKind = "local") -> AddSequence:
    # They repeat: where there are drafts, they are computed too.
    ids = [number + place % _NUM_REPEATED for place in range(_NUM_PROMPT_TOKENS)]
    return AddSequence(
        seq_id=-1 - number - (kind == "remote"),  # the front's are above 0
        request_id="",
        choice=0,
        kind=kind,
        token_ids=b"".join(token.to_bytes(4, "little") for token in ids),
        num_emitted=0,
        block_hashes=b"",
        # A remote sequence finds nothing of its prompt.
        cache_key=os.urandom(CACHE_KEY_BYTES),
        sampling=sampling,
        credit=sampling.max_tokens,
    )


def _run(engine: CoreEngine, *commands: Command) -> list[StepEvents]:
    """Step until nothing is left to do or to be told. Returns the news."""
    page = ProgressPage(bytearray(PAGE_BYTES))
    news: list[StepEvents] = []
    engine.turn(commands, page, news.append)
    while engine.has_work or engine.next_deadline() is not None:
        engine.turn((), page, news.append)
    assert not any(told.refused for told in news), news
    return news
