"""What every engine keeps to a front, by the engine's own messages."""

import time
from array import array
from itertools import count

import pytest

from baton.engine.protocol.messages import Abort, Release
from baton.wire.limits import NUM_TOKENS_ALONE
from baton.wire.prefix_hash import block_hashes, root_hash, split_hashes
from tests.engines.driven_core import DrivenCore

KEYS = (bytes([number]) * 32 for number in count(1))
LONG = list(range(300, 430))  # four full blocks and a part
SHORT = list(range(500, 545))
SAMPLED = {"temperature": 0.9, "seed": 11, "top_p": 0.95, "presence_penalty": 0.6}


@pytest.fixture
def key() -> bytes:
    """A tenant of which the cache knows nothing."""
    return next(KEYS)


def test_tokens_are_gapless_and_end_with_a_reason(core: DrivenCore, key: bytes) -> None:
    seq_ids = [
        core.add(LONG[:n], max_tokens=9, ignore_eos=True, cache_key=key) for n in (5, 64, 99)
    ]
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    assert [len(core.tokens[seq_id]) for seq_id in seq_ids] == [9, 9, 9]
    assert {core.finished[seq_id] for seq_id in seq_ids} == {"length"}
    alone = [core.answer(LONG[:n], max_tokens=9, ignore_eos=True) for n in (5, 64, 99)]
    assert [core.tokens[seq_id] for seq_id in seq_ids] == alone


def test_all_blocks_are_free_at_rest(core: DrivenCore) -> None:
    core.answer(LONG, max_tokens=3)
    core.snapshot()
    assert core.num_free_blocks == core.info.num_blocks


def test_a_stop_token_ends_an_answer_and_is_part_of_it(core: DrivenCore) -> None:
    whole = core.answer(SHORT, max_tokens=12, ignore_eos=True)
    stop = whole[5]
    seq_id = core.add(SHORT, max_tokens=12, ignore_eos=True, stop_token_ids=(stop,))
    core.until(lambda: seq_id in core.finished)
    assert core.tokens[seq_id] == whole[: whole.index(stop) + 1]
    assert core.finished[seq_id] == "stop"


def test_credit_stops_exactly_and_the_answer_goes_on_exactly(core: DrivenCore) -> None:
    whole = core.answer(SHORT, max_tokens=12, ignore_eos=True)
    seq_id = core.add(SHORT, max_tokens=12, ignore_eos=True, credit=4)
    other = core.add(LONG, max_tokens=12, ignore_eos=True)
    core.until(lambda: other in core.finished)
    assert core.tokens[seq_id] == whole[:4]
    core.credit(seq_id, 7)
    core.until(lambda: len(core.tokens[seq_id]) == 7)
    core.credit(seq_id, 100)
    core.until(lambda: seq_id in core.finished)
    assert core.tokens[seq_id] == whole


def test_nothing_is_computed_while_all_are_parked(core: DrivenCore) -> None:
    seq_ids = [core.add(SHORT, max_tokens=12, ignore_eos=True, credit=2) for _ in range(2)]
    core.until(lambda: all(len(core.tokens.get(seq_id, ())) == 2 for seq_id in seq_ids))
    core.snapshot()
    step = core.progress.step
    core.snapshot()
    assert core.progress.step == step
    assert not core.progress.is_busy


def test_an_answer_is_not_billed_for_the_idle_time_before_it(core: DrivenCore) -> None:
    core.answer(SHORT, max_tokens=2, ignore_eos=True)
    time.sleep(0.5)
    began_at = time.monotonic()
    seq_id = core.add(LONG, max_tokens=1)
    core.until(lambda: seq_id in core.finished)
    core.snapshot()
    assert 0 < core.spent_us[seq_id] <= (time.monotonic() - began_at) * 1e6


@pytest.mark.parametrize("first", [{"priority": 1}, {"is_quiet": True}], ids=str)
def test_what_matters_more_goes_first(core: DrivenCore, first: dict[str, int]) -> None:
    before = len(core.shared_steps)
    loud = [([*range(start, start + 600)], {"max_tokens": 1}) for start in range(5)]
    *others, important = core.add_together(*loud, (SHORT, {"max_tokens": 1, **first}))
    core.until(lambda: {important, *others} <= core.finished.keys())
    assert important in core.shared_steps[before]


def test_parked_sequences_make_room_for_one_that_can_run(core: DrivenCore) -> None:
    prompts = [[*range(start, start + 600)] for start in range(8)]
    options = {"max_tokens": 4, "ignore_eos": True}
    parked = [core.add(p, credit=1, cache_key=next(KEYS), **options) for p in prompts]
    core.until(lambda: all(len(core.tokens.get(seq_id, ())) == 1 for seq_id in parked))
    assert core.answer(LONG, **options) == core.answer(LONG, **options)
    for seq_id in parked:
        core.credit(seq_id, 4)
    core.until(lambda: set(parked) <= core.finished.keys())
    assert core.tokens[parked[0]] == core.answer(prompts[0], **options)


@pytest.mark.parametrize("options", [{}, SAMPLED, {"frequency_penalty": 1.5}], ids=str)
def test_an_answer_goes_on_behind_the_tokens_of_earlier_attempts(
    core: DrivenCore, options: dict[str, float]
) -> None:
    options = {"max_tokens": 10, "ignore_eos": True, **options}
    whole = core.answer(LONG, **options)
    for cut in (1, 4, 9):
        seq_id = core.add(LONG, emitted=whole[:cut], **options)
        core.until(lambda seq_id=seq_id: seq_id in core.finished)
        assert core.first_index[seq_id] == cut
        assert core.tokens[seq_id] == whole[cut:]


def test_a_seed_is_one_answer_whatever_else_runs(core: DrivenCore) -> None:
    options = {"max_tokens": 10, "ignore_eos": True, **SAMPLED}
    whole = core.answer(SHORT, **options)
    others = [core.add(LONG, max_tokens=20, seed=n, temperature=1.0) for n in range(3)]
    assert core.answer(SHORT, **options) == whole
    assert core.answer(SHORT, **{**options, "seed": 12}) != whole
    core.end(*others)


def test_an_end_that_was_lost_is_told_again(core: DrivenCore) -> None:
    whole = core.answer(SHORT, max_tokens=3, ignore_eos=True)
    seq_id = core.add(SHORT, max_tokens=3, ignore_eos=True, emitted=whole)
    core.until(lambda: seq_id in core.finished)
    assert (core.finished[seq_id], core.tokens.get(seq_id)) == ("length", None)


def test_min_tokens_keeps_an_answer_from_ending(core: DrivenCore) -> None:
    first = core.answer(SHORT, max_tokens=2, ignore_eos=True)[0]
    seq_id = core.add(SHORT, max_tokens=6, min_tokens=3, stop_token_ids=(first,))
    core.until(lambda: seq_id in core.finished)
    assert len(core.tokens[seq_id]) >= 3
    assert first not in core.tokens[seq_id][:3]


def test_a_biased_token_is_chosen(core: DrivenCore) -> None:
    assert core.answer(SHORT, max_tokens=3, logit_bias=((77, 100.0),)) == [77, 77, 77]


def test_logprobs_are_of_the_token_and_of_the_likeliest(core: DrivenCore) -> None:
    seq_id = core.add(SHORT, max_tokens=3, ignore_eos=True, num_logprobs=2)
    core.until(lambda: seq_id in core.finished)
    entries = core.logprobs[seq_id]
    assert [(e.index, e.token_id) for e in entries] == list(enumerate(core.tokens[seq_id]))
    for entry in entries:
        assert entry.top_ids[0] == entry.token_id  # greedy
        assert entry.top_logprobs[0] == pytest.approx(entry.logprob)
        assert len(entry.top_ids) == len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0] >= entry.top_logprobs[1]


def test_prompt_logprobs_are_of_all_tokens_but_the_first(core: DrivenCore) -> None:
    seq_id = core.add(LONG, max_tokens=1, num_prompt_logprobs=1)
    core.until(lambda: seq_id in core.finished)
    told = [(entry.index, entry.token_id) for entry in core.prompt_logprobs[seq_id]]
    assert told == list(enumerate(LONG))[1:]
    for entry in core.prompt_logprobs[seq_id]:
        assert entry.rank >= (1 if entry.token_id in entry.top_ids else 2)


def test_a_prompt_is_handed_over_block_by_block(core: DrivenCore, key: bytes) -> None:
    whole = core.answer(LONG, max_tokens=8, ignore_eos=True, cache_key=key)
    options = {"max_tokens": 8, "ignore_eos": True}
    source, first = core.prefill(LONG, cache_key=next(KEYS), **options)
    assert source not in core.finished
    assert core.computed[source] == len(LONG)
    target = core.add(LONG, kind="remote", cache_key=next(KEYS), **options)
    table = core.bind(target)
    assert len(table) == core.info.kv_spec.num_blocks_for(len(LONG))
    assert core.admitted[target] == 0
    core.hand_over(source, target, first)
    core.until(lambda: target in core.finished)
    assert [first, *core.tokens[target]] == whole
    assert core.first_index[target] == 1
    core.release(source)


def test_a_sampled_answer_is_handed_over_behind_earlier_tokens(core: DrivenCore) -> None:
    options = {"max_tokens": 8, "ignore_eos": True, **SAMPLED}
    whole = core.answer(LONG, **options)
    emitted = whole[:3]
    source, first = core.prefill(LONG, emitted=emitted, cache_key=next(KEYS), credit=4, **options)
    assert core.first_index[source] == 3
    target = core.add(LONG, kind="remote", emitted=emitted, cache_key=next(KEYS), **options)
    core.bind(target)
    core.hand_over(source, target, first)
    core.until(lambda: target in core.finished)
    assert [*emitted, first, *core.tokens[target]] == whole


def test_a_prompt_that_was_handed_over_waits_for_credit(core: DrivenCore) -> None:
    whole = core.answer(LONG, max_tokens=8, ignore_eos=True)
    options = {"max_tokens": 8, "ignore_eos": True}
    source, first = core.prefill(LONG, cache_key=next(KEYS), **options)
    target = core.add(LONG, kind="remote", cache_key=next(KEYS), credit=1, **options)
    core.bind(target)
    core.hand_over(source, target, first)
    core.release(source)
    step = -1
    while core.progress.step != step:  # its blocks may be taken in
        step = core.progress.step
        core.snapshot()
    assert target not in core.tokens
    assert not core.progress.is_busy
    core.credit(target, 8)
    core.until(lambda: target in core.finished)
    assert [first, *core.tokens[target]] == whole


def test_only_blocks_that_are_not_cached_are_missing(core: DrivenCore, key: bytes) -> None:
    whole = core.answer(LONG, max_tokens=8, ignore_eos=True, cache_key=key)
    target = core.add(LONG, kind="remote", max_tokens=8, ignore_eos=True, cache_key=key)
    core.until(lambda: target in core.admitted)
    assert core.admitted[target] == len(LONG) // core.block_size
    # The prefill finds them, too, and they are in the pool although a local sequence made them.
    source, first = core.prefill(LONG, max_tokens=8, ignore_eos=True, cache_key=key)
    assert core.started[source].num_cached_tokens == 4 * core.block_size
    other = core.add(LONG, kind="remote", max_tokens=8, ignore_eos=True, cache_key=next(KEYS))
    core.bind(other)
    core.hand_over(source, other, first)
    core.until(lambda: other in core.finished)
    assert [first, *core.tokens[other]] == whole


def test_a_prefill_whose_first_token_is_the_last_has_ended(core: DrivenCore) -> None:
    source, _ = core.prefill(SHORT, max_tokens=1)
    core.until(lambda: source in core.finished)
    assert core.finished[source] == "length"
    source, first = core.prefill(SHORT, max_tokens=9)
    source, _ = core.prefill(SHORT, max_tokens=9, stop_token_ids=(first,))
    core.until(lambda: source in core.finished)
    assert core.finished[source] == "stop"


def test_what_has_no_room_is_refused_at_once(core: DrivenCore) -> None:
    held = [core.add(LONG, kind="remote", max_tokens=4, cache_key=next(KEYS)) for _ in range(9)]
    core.until(lambda: all(seq_id in core.admitted or seq_id in core.refused for seq_id in held))
    refused = [seq_id for seq_id in held if seq_id in core.refused]
    assert refused
    assert {core.refused[seq_id].reason for seq_id in refused} == {"no_room"}


def test_a_prompt_from_elsewhere_finds_room_beside_prompts_that_fill_each_step(
    core: DrivenCore,
) -> None:
    prompts = [[*range(start, start + 600)] for start in range(3)]
    fill = [(prompt, {"max_tokens": 1, "cache_key": next(KEYS)}) for prompt in prompts]
    *_, seq_id = core.add_together(*fill, (SHORT, {"kind": "remote", "max_tokens": 4}))
    core.until(lambda: seq_id in core.admitted or seq_id in core.refused)
    assert seq_id in core.admitted


def test_a_prompt_from_elsewhere_takes_no_blocks_of_parked_ones_where_others_are_free(
    core: DrivenCore,
) -> None:
    parked = core.add(SHORT, max_tokens=4, credit=1, ignore_eos=True)
    core.until(lambda: parked in core.tokens)
    seq_id = core.add(LONG, kind="remote", max_tokens=4)
    core.until(lambda: seq_id in core.admitted)
    core.snapshot()
    assert core.load.num_running == 1
    assert core.num_preemptions == 0


def test_what_was_handed_over_and_waits_for_credit_keeps_its_place(core: DrivenCore) -> None:
    source, first = core.prefill(LONG, max_tokens=4)
    target = core.add(LONG, kind="remote", max_tokens=4, credit=1, cache_key=next(KEYS))
    core.bind(target)
    core.hand_over(source, target, first)
    core.release(source)
    core.snapshot()
    load = core.load
    assert load.num_running + load.num_waiting + load.num_not_started == 1


def test_a_prompt_starts_when_a_held_one_is_released(core: DrivenCore) -> None:
    held = []
    num_needed = core.info.kv_spec.num_blocks_for(600)
    has_rows = bool(core.info.num_rows)
    while core.num_free_blocks >= num_needed and (
        not has_rows or core.load.num_rows_free >= num_needed
    ):
        prompt = range(len(held), len(held) + 600)
        held.append(core.prefill(prompt, max_tokens=4, cache_key=next(KEYS))[0])
    waiting = core.add(range(700, 1300), kind="prefill", max_tokens=4)
    core.snapshot()
    assert waiting not in core.started
    core.release(held[0])
    core.until(lambda: waiting in core.tokens)


PHASES = ["queued", "parked", "running", "held", "admitted", "bound", "handed over"]


@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_frees_everything_in_every_phase(core: DrivenCore, phase: str) -> None:
    num_free = core.num_free_blocks
    options = {"max_tokens": 400, "ignore_eos": True, "cache_key": next(KEYS)}
    if phase in ("queued", "parked", "running"):
        seq_id = core.add(LONG, credit={"queued": 0, "parked": 3}.get(phase, 400), **options)
        if phase != "queued":
            core.until(lambda: len(core.tokens.get(seq_id, ())) == 3 or phase == "running")
        core.end(seq_id)
    elif phase == "held":
        core.release(core.prefill(LONG, **options)[0])
    else:
        seq_id = core.add(LONG, kind="remote", **options)
        core.until(lambda: seq_id in core.admitted)
        if phase != "admitted":
            core.bind(seq_id)
        if phase == "handed over":
            source, first = core.prefill(LONG, **{**options, "cache_key": next(KEYS)})
            core.hand_over(source, seq_id, first)
            core.release(source)
        core.end(seq_id)
    core.snapshot()
    assert core.num_free_blocks == num_free


def test_a_second_abort_frees_nothing_twice(core: DrivenCore) -> None:
    num_free = core.num_free_blocks
    seq_id = core.add(LONG, kind="remote", max_tokens=4, cache_key=next(KEYS))
    core.bind(seq_id)
    core.send(Abort(seq_id), Abort(seq_id))
    core.until(lambda: seq_id in core.freed)
    core.snapshot()
    assert core.num_free_blocks == num_free


def test_a_release_of_an_unknown_sequence_is_answered(core: DrivenCore) -> None:
    core.send(Release(10_000))
    core.until(lambda: 10_000 in core.freed)


def test_hashes_are_those_of_the_tokenizer_and_of_one_tenant(core: DrivenCore, key: bytes) -> None:
    before = core.snapshot()
    core.answer(LONG, max_tokens=1, cache_key=key)
    new = core.snapshot() - before
    root = root_hash(core.info.model_fp, core.block_size, key)
    ids = array("I", LONG).tobytes()
    assert new == set(split_hashes(block_hashes(root, ids, core.block_size, key)))
    core.answer(LONG, max_tokens=1, cache_key=next(KEYS))
    assert len(core.snapshot() - before) == 2 * len(new)


def test_events_add_up_to_what_is_cached_also_after_evictions(core: DrivenCore) -> None:
    for start in range(12):
        core.answer(range(start, start + 600), max_tokens=1, cache_key=next(KEYS))
    assert core.snapshot() == core.cached
    assert core.last is not None
    assert core.last.num_cached_hashes == len(core.cached)


def test_a_deadline_ends_a_sequence(core: DrivenCore) -> None:
    seq_id = core.add(SHORT, max_tokens=9, credit=2, deadline=time.monotonic() + 0.2)
    core.until(lambda: seq_id in core.finished)
    assert core.finished[seq_id] == "deadline_exceeded"


def test_what_the_engine_does_not_serve_is_refused_by_name(core: DrivenCore) -> None:
    for name in core.info.unsupported:
        options = {"use_beam_search": {"beam_width": 1}}.get(name)
        if options is not None:
            seq_id = core.add(SHORT, max_tokens=4, **options)
            core.until(lambda seq_id=seq_id: seq_id in core.refused)
            refused = core.refused[seq_id]
            assert refused.reason == "unsupported_parameter"
            assert name in refused.message
            assert core.info.engine in refused.message


def test_an_adapter_that_is_not_served_is_refused(core: DrivenCore) -> None:
    seq_id = core.add(SHORT, max_tokens=4, adapter="0" * 32)
    core.until(lambda: seq_id in core.refused)
    has_adapters = core.info.num_adapter_slots > 0
    reason = "no_room" if has_adapters else "unsupported_parameter"
    assert core.refused[seq_id].reason == reason
    assert "adapter" in core.refused[seq_id].message


def test_what_no_engine_serves_is_refused_with_its_reason(core: DrivenCore) -> None:
    asked = {
        "context_length_exceeded": core.add([5] * 640, max_tokens=2),
        "invalid_token_id": core.add([core.info.vocab_size], max_tokens=2),
    }
    core.until(lambda: set(asked.values()) <= core.refused.keys())
    assert {core.refused[seq_id].reason for seq_id in asked.values()} == set(asked)


def test_a_suspect_shares_no_step_until_it_has_brought_a_few_tokens(core: DrivenCore) -> None:
    other = core.add(SHORT, max_tokens=300, ignore_eos=True, credit=300)
    core.until(lambda: len(core.tokens.get(other, ())) > 2)
    suspect = core.add(LONG, max_tokens=20, ignore_eos=True, is_suspect=True)
    before = len(core.shared_steps)
    core.until(lambda: suspect in core.finished)
    shared = [both for both in core.shared_steps[before:] if suspect in both]
    first_tokens = shared[:NUM_TOKENS_ALONE]
    assert first_tokens == [{suspect}] * NUM_TOKENS_ALONE
    assert core.tokens[suspect] == core.answer(LONG, max_tokens=20, ignore_eos=True)


def test_an_answer_ends_where_the_context_does(core: DrivenCore) -> None:
    prompt = [7] * (core.info.max_model_len - 5)
    seq_id = core.add(prompt, max_tokens=50, ignore_eos=True)
    core.until(lambda: seq_id in core.finished)
    assert core.finished[seq_id] == "length"
    assert len(core.tokens[seq_id]) == 5
