"""The results that a beam search on a FakeRunner must give, computed the slow and obvious way.

Every hypothesis is a whole token list, computed from its first token at each step. Written apart
from the engine's own search, after transformers' `generate`.
"""

from collections.abc import Iterable

import msgspec

from baton.engine.protocol.batch import SampleRow
from baton.engine.protocol.messages import SamplingParams
from baton.testing.fake_runner import FakeRunner

Hypothesis = tuple[float, tuple[int, ...]]


def lone_beam_search(
    runner: FakeRunner, prompt: Iterable[int], params: SamplingParams
) -> list[list[int]]:
    """The outputs of the best hypotheses, best first."""
    prompt = list(prompt)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(runner.eos_token_ids))
    max_tokens = min(params.max_tokens, runner.max_model_len - len(prompt))
    width, penalty = params.beam_width, params.length_penalty
    live: list[Hypothesis] = [(0.0, ())]
    done: list[Hypothesis] = []
    for length in range(1, max_tokens + 1):
        extended = _extend(runner, prompt, params, live, length <= params.min_tokens and ends)
        ended = [h for h in extended[:width] if h[1][-1] in ends or length == max_tokens]
        done += [(score / length**penalty, tokens) for score, tokens in ended]
        done = sorted(done, key=lambda h: -h[0])[:width]
        live = [h for h in extended if h[1][-1] not in ends][:width]
        if len(done) == width:
            hoped = max_tokens if params.early_stopping == "never" and penalty > 0 else length
            if params.early_stopping == "full" or live[0][0] / hoped**penalty <= done[-1][0]:
                break
    return [list(tokens) for _, tokens in done]


def _extend(
    runner: FakeRunner,
    prompt: list[int],
    params: SamplingParams,
    live: list[Hypothesis],
    banned: object,
) -> list[Hypothesis]:
    """All continuations among each hypothesis' likeliest tokens, best first."""
    # More than can continue or end: no other token of a hypothesis can matter.
    num_top = 2 * params.beam_width + len(params.stop_token_ids) + len(runner.eos_token_ids)
    num_top = min(runner.vocab_size, num_top)
    asking = msgspec.structs.replace(params, num_logprobs=num_top, temperature=0.0)
    extended: list[tuple[float, int, int, tuple[int, ...]]] = []
    for rank, (score, tokens) in enumerate(live):
        row = SampleRow(0, asking, 0, len(tokens), num_logprobs=num_top)
        top = runner.lone_logprobs([*prompt, *tokens], row)
        for token, logprob in zip(top.top_ids, top.top_logprobs, strict=True):
            if not (isinstance(banned, set) and token in banned):
                extended.append((-(score + logprob), rank, token, (*tokens, token)))
    return [(-score, tokens) for score, _, _, tokens in sorted(extended)]
