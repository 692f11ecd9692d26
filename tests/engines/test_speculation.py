"""Drafts change how many steps an answer takes, and nothing of the answer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from baton.engine.protocol.messages import Grammar
from tests.engines.conftest import ENGINES, start_core
from tests.engines.driven_core import DrivenCore
from tools.engine_table import ENGINE

# It repeats itself, and so does what the model makes of it.
PROMPT = [11, 12, 13, 14, 15, 16, 17] * 9
WORDS = Grammar("regex", "(one two three ){2,9}")
ANSWERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.7, "seed": 5},
    "top": {"temperature": 0.4, "seed": 6, "top_k": 4, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.05, "presence_penalty": 0.1, "frequency_penalty": 0.1},
    "biased": {"logit_bias": tuple((token, 9.0) for token in PROMPT[:7]), "temperature": 0.5},
    "grammar": {"grammar": WORDS, "temperature": 1.0, "seed": 8},
    "logprobs": {"num_logprobs": 2},
}


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[DrivenCore, DrivenCore]]:
    """A core that drafts, and one of the same engine that does not."""
    cores = [start_core(request.param, speculation_tokens=num) for num in (4, 0)]
    yield cores[0], cores[1]
    for core in cores:
        core.close()


@pytest.fixture
def core(
    pair: tuple[DrivenCore, DrivenCore], record_property: Callable[[str, object], None]
) -> DrivenCore:
    record_property(ENGINE, pair[0].info.engine)
    return pair[0]


@pytest.fixture
def plain(pair: tuple[DrivenCore, DrivenCore]) -> DrivenCore:
    return pair[1]


def test_an_answer_is_the_same_with_and_without_speculation(
    core: DrivenCore, plain: DrivenCore
) -> None:
    wanted = [
        (PROMPT, {"max_tokens": 40, "ignore_eos": True} | options) for options in ANSWERS.values()
    ]
    told = []
    for each in (core, plain):
        seq_ids = each.add_together(*wanted)
        each.until(lambda each=each, ids=seq_ids: each.finished.keys() >= set(ids))
        told.append([each.tokens[seq_id] for seq_id in seq_ids])
        logprobs = each.logprobs[seq_ids[-1]]
        assert [one.token_id for one in logprobs] == told[-1][-1]
        assert [one.index for one in logprobs] == list(range(40))
    assert dict(zip(ANSWERS, told[0], strict=True)) == dict(zip(ANSWERS, told[1], strict=True))


def test_right_drafts_save_steps(core: DrivenCore) -> None:
    num_steps, num_accepted = len(core.shared_steps), core.num_accepted
    bias = tuple((token, 50.0) for token in PROMPT[:1])
    core.answer(PROMPT[:1] * 20, max_tokens=40, logit_bias=bias, ignore_eos=True)
    num_saved = core.num_accepted - num_accepted
    assert num_saved > 20
    assert len(core.shared_steps) - num_steps == 40 - num_saved


def test_drafts_stop_at_the_credit(core: DrivenCore, plain: DrivenCore) -> None:
    options = {"max_tokens": 20, "ignore_eos": True}
    whole = plain.answer(PROMPT, **options)
    for credit in (2, 3, 7):
        seq_id = core.add(PROMPT, credit=credit, **options)
        core.until(lambda seq_id=seq_id, num=credit: len(core.tokens.get(seq_id, ())) >= num)
        core.snapshot()
        assert core.tokens[seq_id] == whole[:credit]
        core.credit(seq_id, 20)
        core.until(lambda seq_id=seq_id: seq_id in core.finished)
        assert core.tokens[seq_id] == whole


def test_a_stop_token_within_a_draft_ends_the_answer(core: DrivenCore, plain: DrivenCore) -> None:
    whole = plain.answer(PROMPT, max_tokens=140, ignore_eos=True)
    prompt, rest = PROMPT + whole[:120], whole[120:]
    num_drafted = core.num_drafted
    for token in dict.fromkeys(rest[2:]):
        seq_id = core.add(prompt, max_tokens=20, ignore_eos=True, stop_token_ids=(token,))
        core.until(lambda seq_id=seq_id: seq_id in core.finished)
        assert core.finished[seq_id] == "stop"
        assert core.tokens[seq_id] == rest[: rest.index(token) + 1]
    assert core.num_drafted > num_drafted
