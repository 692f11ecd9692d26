"""Structured output, on every engine: what is sampled matches, wherever it is sampled."""

import json
import re
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from baton.engine.protocol.messages import Grammar
from tests.engines.driven_core import DrivenCore

KEYS = (b"grammar" + bytes([number]) * 25 for number in count(1))
PROMPT = list(range(300, 430))
WORD = Grammar("regex", "[a-z]{3,8}")
PERSON = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"enum": ["ada", "bob"]}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
)
SAMPLED = {"temperature": 1.0, "seed": 5, "max_tokens": 60}


@cache
def tokenizer_of(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)


def text_of(core: DrivenCore, tokens: list[int]) -> str:
    assert core.info.tokenizer_file is not None
    assert Path(core.info.tokenizer_file).is_file()
    text: str = tokenizer_of(core.info.tokenizer_file).decode(tokens)
    return text


@pytest.mark.parametrize("options", [{"max_tokens": 20}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_answer_matches_its_grammar(
    core: DrivenCore, options: dict[str, float], ignore_eos: bool
) -> None:
    seq_id = core.add(PROMPT, grammar=WORD, ignore_eos=ignore_eos, **options)
    core.until(lambda: seq_id in core.finished)
    assert core.finished[seq_id] == "stop"
    assert re.fullmatch("[a-z]{3,8}", text_of(core, core.tokens[seq_id]))


def test_an_answer_with_a_grammar_goes_on_behind_its_tokens(core: DrivenCore) -> None:
    whole = core.answer(PROMPT, grammar=PERSON, **SAMPLED)
    assert json.loads(text_of(core, whole)).keys() == {"name", "age"}
    for cut in (1, 4, len(whole) - 1):
        rest = core.answer(PROMPT, grammar=PERSON, emitted=whole[:cut], **SAMPLED)
        assert rest == whole[cut:]


def test_an_answer_with_a_grammar_is_handed_over(core: DrivenCore) -> None:
    options = {"grammar": PERSON, **SAMPLED}
    whole = core.answer(PROMPT, **options)
    source, first = core.prefill(PROMPT, cache_key=next(KEYS), **options)
    target = core.add(PROMPT, kind="remote", cache_key=next(KEYS), **options)
    core.bind(target)
    core.hand_over(source, target, first)
    core.until(lambda: target in core.finished)
    assert [first, *core.tokens[target]] == whole
    core.release(source)


def test_choices_share_a_grammar_and_match_it_each(core: DrivenCore) -> None:
    seq_ids = core.add_choices(PROMPT, 3, grammar=PERSON, cache_key=next(KEYS), **SAMPLED)
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    answers = [core.tokens[seq_id] for seq_id in seq_ids]
    assert answers == [core.answer(PROMPT, choice=n, grammar=PERSON, **SAMPLED) for n in range(3)]
    assert all(json.loads(text_of(core, tokens)) for tokens in answers)


def test_those_beside_a_grammar_are_what_they_are_alone(core: DrivenCore) -> None:
    plain = {"max_tokens": 12, "ignore_eos": True}
    whole = core.answer(PROMPT, **plain)
    limited = core.add(PROMPT, grammar=PERSON, **SAMPLED)
    assert core.answer(PROMPT, **plain) == whole
    core.until(lambda: limited in core.finished)
    assert core.tokens[limited] == core.answer(PROMPT, grammar=PERSON, **SAMPLED)


def test_a_grammar_that_cannot_be_compiled_ends_its_sequence_alone(core: DrivenCore) -> None:
    bad = core.add(PROMPT, grammar=Grammar("regex", "(?=a)b"), max_tokens=4)
    assert len(core.answer(PROMPT, max_tokens=4, ignore_eos=True)) == 4
    core.until(lambda: bad in core.finished)
    assert core.finished[bad] == "invalid_grammar"
    assert core.messages[bad]
    assert bad not in core.tokens


def test_a_sequence_that_waits_for_its_grammar_can_be_aborted(core: DrivenCore) -> None:
    num_free = core.num_free_blocks
    core.end(core.add(PROMPT, grammar=WORD, max_tokens=4, cache_key=next(KEYS)))
    core.snapshot()
    assert core.num_free_blocks == num_free
