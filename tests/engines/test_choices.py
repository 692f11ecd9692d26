"""Several choices of one prompt, on every engine: computed once, each as if it were alone."""

from itertools import count

import pytest

from baton.engine.protocol.messages import Abort
from tests.engines.driven_core import DrivenCore

KEYS = (b"choices" + bytes([number]) * 25 for number in count(1))
PROMPT = list(range(300, 430))  # four full blocks and a part
SAMPLED = {"temperature": 0.9, "seed": 11, "top_p": 0.95, "presence_penalty": 0.6}
OPTIONS = {"max_tokens": 8, "ignore_eos": True, **SAMPLED}


def alone(core: DrivenCore, choice: int, **options: object) -> list[int]:
    return core.answer(PROMPT, choice=choice, cache_key=next(KEYS), **{**OPTIONS, **options})


def handed_over(core: DrivenCore, num_choices: int, **options: object) -> list[int]:
    """Choices whose prompt another sequence has computed, with their first tokens."""
    wanted = {**OPTIONS, **options}
    sources = core.add_choices(PROMPT, num_choices, kind="prefill", cache_key=next(KEYS), **wanted)
    core.until(lambda: set(sources) <= core.tokens.keys())
    targets = core.add_choices(PROMPT, num_choices, kind="remote", cache_key=next(KEYS), **wanted)
    core.bind(targets[0])
    tokens = [core.tokens[seq_id][0] for seq_id in sources]
    for target, token in zip(targets, tokens, strict=True):
        core.tokens[target], core.first_index[target] = [token], 0
    core.hand_over(sources[0], targets[0], tokens[0], *zip(targets[1:], tokens[1:], strict=True))
    for seq_id in sources:
        core.release(seq_id)
    return targets


def test_choices_are_what_each_is_alone(core: DrivenCore) -> None:
    seq_ids = core.add_choices(PROMPT, 3, cache_key=next(KEYS), **OPTIONS)
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    assert {core.finished[seq_id] for seq_id in seq_ids} == {"length"}
    assert [core.tokens[seq_id] for seq_id in seq_ids] == [alone(core, n) for n in range(3)]


def test_the_prompt_of_choices_is_computed_once(core: DrivenCore) -> None:
    seq_ids = core.add_choices(PROMPT, 3, cache_key=next(KEYS), **OPTIONS)
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    assert [seq_id for seq_id in seq_ids if seq_id in core.started] == seq_ids[:1]
    first_step = next(step for step in core.shared_steps if seq_ids[0] in step)
    assert first_step >= set(seq_ids)


def test_each_choice_has_its_own_logprobs(core: DrivenCore) -> None:
    seq_ids = core.add_choices(PROMPT, 3, cache_key=next(KEYS), num_logprobs=2, **OPTIONS)
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    for seq_id in seq_ids:
        told = [(entry.index, entry.token_id) for entry in core.logprobs[seq_id]]
        assert told == list(enumerate(core.tokens[seq_id]))
        assert all(len(entry.top_ids) == 2 for entry in core.logprobs[seq_id])


def test_choices_are_handed_over_with_their_first_tokens(core: DrivenCore) -> None:
    targets = handed_over(core, 3)
    core.until(lambda: set(targets) <= core.finished.keys())
    assert [core.tokens[seq_id] for seq_id in targets] == [alone(core, n) for n in range(3)]


def test_a_choice_that_was_handed_over_may_have_ended_with_its_first_token(
    core: DrivenCore,
) -> None:
    firsts = [alone(core, choice)[0] for choice in range(3)]
    assert len(set(firsts)) > 1
    stop_token_ids = (firsts[0],)
    targets = handed_over(core, 3, stop_token_ids=stop_token_ids)
    core.until(lambda: set(targets) <= core.finished.keys())
    expected = [alone(core, n, stop_token_ids=stop_token_ids) for n in range(3)]
    assert expected[0] == firsts[:1]
    assert [core.tokens[seq_id] for seq_id in targets] == expected


def test_each_choice_waits_for_its_own_credit(core: DrivenCore) -> None:
    seq_ids = core.add_choices(PROMPT, 3, cache_key=next(KEYS), credit=2, **OPTIONS)
    core.until(lambda: all(len(core.tokens.get(seq_id, ())) == 2 for seq_id in seq_ids))
    core.credit(seq_ids[1], 8)
    core.until(lambda: seq_ids[1] in core.finished)
    core.snapshot()
    assert [len(core.tokens[seq_id]) for seq_id in seq_ids] == [2, 8, 2]
    for seq_id in seq_ids:
        core.credit(seq_id, 8)
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    assert [core.tokens[seq_id] for seq_id in seq_ids] == [alone(core, n) for n in range(3)]


def test_a_choice_goes_on_without_a_reader_of_the_first_one(core: DrivenCore) -> None:
    seq_ids = core.add_choices(PROMPT, 3, cache_key=next(KEYS), credit=0, **OPTIONS)
    core.credit(seq_ids[2], 8)
    core.until(lambda: seq_ids[2] in core.finished)
    assert core.tokens[seq_ids[2]] == alone(core, 2)
    assert not core.tokens.keys() & set(seq_ids[:2])


@pytest.mark.parametrize("aborted", [0, 1])
@pytest.mark.parametrize("credit", [0, 8])
def test_a_choice_can_be_aborted_at_any_time(core: DrivenCore, aborted: int, credit: int) -> None:
    seq_ids = core.add_choices(PROMPT, 3, cache_key=next(KEYS), credit=credit, **OPTIONS)
    gone = seq_ids.pop(aborted)
    core.send(Abort(gone))
    for seq_id in seq_ids:
        core.credit(seq_id, 8)
    core.until(lambda: set(seq_ids) <= core.finished.keys() and gone in core.freed)
    choices = [n for n in range(3) if n != aborted]
    assert [core.tokens[seq_id] for seq_id in seq_ids] == [alone(core, n) for n in choices]


@pytest.mark.parametrize("kind", ["local", "prefill", "remote"])
def test_aborted_choices_leave_nothing(core: DrivenCore, kind: str) -> None:
    num_free = core.num_free_blocks
    seq_ids = core.add_choices(PROMPT, 3, kind=kind, cache_key=next(KEYS), credit=1, **OPTIONS)
    core.snapshot()
    core.end(*seq_ids)
    core.snapshot()
    assert core.num_free_blocks == num_free
    assert core.load.num_waiting == 0
