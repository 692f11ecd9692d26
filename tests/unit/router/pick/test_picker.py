from random import Random

import pytest

from baton.wire.pick_reasons import cost_s, name_of, text_of
from services.router.fleet.views import PrefillMode, Unfit
from services.router.pick.picker import NoPick, Obstacle, Pick, pick


def text(choice) -> str:
    return text_of(choice.reasons.to_wire())


@pytest.fixture
def choose(demand, policy):
    def run(decodes, prefills=(), seed=1, **changes):
        return pick(demand(**changes), decodes, prefills, policy, Random(seed))

    return run


def test_the_pair_with_the_longest_cached_prefix_wins_when_all_are_idle(choose, view) -> None:
    prefills = [view("p0"), view("p1", num_cached_tokens=256)]
    decodes = [view("d0", num_cached_tokens=256), view("d1")]
    choice = choose(decodes, prefills)
    assert (choice.prefill.worker_id, choice.decode.worker_id) == ("p1", "d0")


def test_a_long_queue_outweighs_a_cached_prefix(choose, view) -> None:
    prefills = [view("p0", num_cached_tokens=256, num_queued_prefill_tokens=4000), view("p1")]
    assert choose([view("d0")], prefills).prefill.worker_id == "p1"


def test_a_busy_decode_worker_loses_to_an_idle_one_without_the_prefix(choose, view) -> None:
    busy = view("d0", num_cached_tokens=512, num_running=16, num_sequences=16, decode_step_s=0.02)
    assert choose([busy, view("d1")], [view("p0")]).decode.worker_id == "d1"


def test_a_slow_decode_worker_is_avoided_but_still_used_alone(choose, view) -> None:
    slow = view("d0", decode_step_s=0.1, num_running=1, num_sequences=1)
    fast = view("d1", num_running=3, num_sequences=3)
    assert choose([slow, fast], [view("p0")]).decode.worker_id == "d1"
    assert choose([slow], [view("p0")]).decode.worker_id == "d0"


def test_a_worker_whose_steps_take_eight_times_as_long_as_reported_is_predicted_as_measured(
    choose, view
) -> None:
    slow = view("d0", num_running=4, num_sequences=4, decode_step_s=0.01, step_wait_s=0.08)
    choice = choose([slow], [view("p0")])
    assert choice.reasons.chosen.costs.steps_s == 0.08
    assert choice.first_token_s == pytest.approx(sum(choice.reasons.chosen.costs[:3]) + 0.08)


def test_nobody_waits_for_a_step_of_a_worker_that_runs_nothing(choose, view) -> None:
    idle = view("d0", decode_step_s=0.01, step_wait_s=0.08)
    assert choose([idle], [view("p0")]).reasons.chosen.costs.steps_s == 0.01


def test_an_idle_worker_is_not_avoided_for_what_it_measured_long_ago(choose, view) -> None:
    once_slow = view("d0", decode_step_s=0.1)
    busy = view("d1", num_running=2, num_sequences=2)
    assert choose([once_slow, busy], [view("p0")]).decode.worker_id == "d0"


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("running", [0, 8])
def test_a_burst_spreads_evenly_over_equal_workers_whatever_their_means_say(
    choose, view, factor: float, running: int
) -> None:
    counts = {"d0": 0, "d1": 0}
    for number in range(20):
        decodes = [
            view(name, decode_step_s=0.01 * scale, num_running=running, num_sequences=running + n)
            for (name, n), scale in zip(counts.items(), (1.0, factor), strict=True)
        ]
        counts[choose(decodes, [view("p0")], seed=number).decode.worker_id] += 1
    assert counts == {"d0": 10, "d1": 10}


def test_the_reasons_name_winner_losers_and_why(choose, view) -> None:
    decodes = [view("d0"), view("d1", unfit=Unfit.DRAINING), view("d2", num_blocks_free=3)]
    prefills = [view("p0"), view("p1", unfit=Unfit.STALE)]
    reasons = text(choose(decodes, prefills))
    assert reasons.startswith("d0+p0 ")
    for part in ("prefill 0.512", "cached 0/512", "d1 draining", "d2 no_room", "p1 stale"):
        assert part in reasons


def test_a_loser_is_shown_with_the_part_that_it_lost_by(choose, view) -> None:
    busy = view("d1", num_sequences=8)
    assert "d1+p0 +" in (reasons := text(choose([view("d0"), busy], [view("p0")])))
    assert reasons.endswith("s itl")


def test_a_prefill_worker_that_lost_is_shown_with_how_far_behind_it_was(choose, view) -> None:
    prefills = [view("p0"), view("p1", num_queued_prefill_tokens=500)]
    assert "d0+p1 +0.5s wait" in text(choose([view("d0")], prefills))


def test_a_prefill_worker_that_is_too_small_is_named(choose, view) -> None:
    prefills = [view("p0"), view("p1", num_blocks=10)]
    assert "p1 too_large" in text(choose([view("d0")], prefills))


def test_the_parts_of_a_choice_add_up_to_its_score(choose, view) -> None:
    busy = view("p1", num_queued_prefill_tokens=500)
    choices = choose([view("d0"), view("d1", num_sequences=8)], [view("p0"), busy]).reasons
    wire = choices.to_wire()
    assert [name_of(each) for each in wire.choices] == ["d0+p0", "d1+p0", "d0+p1"]
    assert [each.wait_s for each in wire.choices] == [0.0, 0.0, 0.5]
    scores = [sum(each.costs) for each in (choices.chosen, *choices.others)]
    assert sorted(map(cost_s, wire.choices)) == pytest.approx(sorted(scores))


def test_a_prefill_worker_that_is_too_small_for_the_prompt_is_not_the_partner(choose, view) -> None:
    prefills = [view("p0", num_blocks=10), view("p1", num_queued_prefill_tokens=500)]
    assert choose([view("d0")], prefills).prefill.worker_id == "p1"
    assert choose([view("d0")], prefills[:1]).obstacle is Obstacle.TOO_LARGE


def test_the_reasons_stay_short_in_a_large_fleet(choose, view) -> None:
    decodes = [view(f"d{i}", unfit=Unfit.LOST) for i in range(100)] + [view("d100")]
    reasons = text(choose(decodes, [view("p0")]))
    assert "and 92 more" in reasons
    assert len(reasons) < 1000


@pytest.mark.parametrize(
    "lack",
    [
        {"num_batch_slots_free": 0},
        {"num_blocks_free": 33},
        {"num_blocks_promised": 280},
    ],
)
def test_a_worker_without_room_is_not_picked(choose, view, lack) -> None:
    # 512 tokens are 32 blocks, and two more to grow into.
    outcome = choose([view("d0", **lack)], [view("p0")])
    assert isinstance(outcome, NoPick)
    assert outcome.obstacle is Obstacle.NO_ROOM


def test_a_prompt_that_fills_the_whole_pool_still_fits(choose, view) -> None:
    outcome = choose([view("d0")], [view("p0")], num_prompt_tokens=15_990)
    assert isinstance(outcome, Pick)
    assert outcome.num_decode_blocks == 1000


def test_no_more_room_is_asked_for_than_the_answer_can_need(choose, view) -> None:
    decode = view("d0", num_blocks_free=33)
    choice = choose([decode], [view("p0")], num_prompt_tokens=510, expected_output_tokens=5)
    assert choice.num_decode_blocks == 33


def test_blocks_that_are_cached_on_decode_are_not_needed_again(choose, view) -> None:
    decode = view("d0", num_blocks_free=4, num_cached_tokens=480)
    assert isinstance(choose([decode], [view("p0")]), Pick)


def test_the_only_promise_may_exceed_the_cap(choose, view) -> None:
    outcome = choose([view("d0")], [view("p0")], num_prompt_tokens=16 * 500)
    assert isinstance(outcome, Pick)


def test_promises_do_not_limit_local_prefill(choose, view) -> None:
    decode = view("d0", num_blocks_promised=290)
    assert isinstance(choose([decode], mode=PrefillMode.LOCAL), Pick)


def test_choices_share_the_blocks_of_their_prompt_and_each_needs_room_to_grow(choose, view) -> None:
    decode = view("d0", num_blocks_free=40)
    assert choose([decode], [view("p0")], num_choices=2).num_decode_blocks == 34 + 2
    assert choose([decode], [view("p0")], num_choices=5).obstacle is Obstacle.NO_ROOM
    # A last block that is not full is each choice's own.
    part = choose([decode], [view("p0")], num_choices=2, num_prompt_tokens=500)
    assert part.num_decode_blocks == 34 + 3


def test_local_choices_that_do_not_fit_together_wait_for_an_idle_worker(choose, view) -> None:
    local = {"mode": PrefillMode.LOCAL, "num_choices": 40}
    assert isinstance(choose([view("d0")], **local), Pick)
    assert choose([view("d0", num_batch_slots_free=31)], **local).obstacle is Obstacle.NO_ROOM


def test_choices_that_can_never_be_promised_together_are_too_large(choose, view) -> None:
    decode = view("d0", num_blocks=64)
    assert choose([decode], [view("p0")], num_choices=17).obstacle is Obstacle.TOO_LARGE
    assert isinstance(choose([decode], [view("p0")], num_choices=16), Pick)


def test_more_choices_than_slots_take_turns_on_an_idle_worker(choose, view) -> None:
    assert isinstance(choose([view("d0")], [view("p0")], num_choices=33), Pick)
    busy = view("d0", num_batch_slots_free=31)
    assert choose([busy], [view("p0")], num_choices=33).obstacle is Obstacle.NO_ROOM


def test_a_prompt_that_never_fits_differs_from_one_that_must_wait(choose, view) -> None:
    assert (
        choose([view("d0")], [view("p0")], num_prompt_tokens=16_000).obstacle is Obstacle.TOO_LARGE
    )
    decodes = [view("d0"), view("d1", num_blocks=5000, unfit=Unfit.LOST)]
    assert choose(decodes, [view("p0")], num_prompt_tokens=16_000).obstacle is Obstacle.NO_WORKER


def test_remote_mode_without_a_prefill_worker_has_no_worker(choose, view) -> None:
    assert choose([view("d0")]).obstacle is Obstacle.NO_WORKER
    assert choose([view("d0")], [view("p0", unfit=Unfit.LOST)]).obstacle is Obstacle.NO_WORKER


def test_only_workers_with_equal_blocks_are_paired(choose, view) -> None:
    decodes = [view("d0", digest="other"), view("d1", num_sequences=10)]
    choice = choose(decodes, [view("p0")])
    assert choice.decode.worker_id == "d1"
    assert "d0 no_partner" in text(choice)


def test_local_mode_uses_no_prefill_worker(choose, view) -> None:
    assert choose([view("d0")], [view("p0")], mode=PrefillMode.LOCAL).prefill is None


def test_local_prefill_beyond_its_cap_counts_the_missing_tokens_only(choose, view) -> None:
    local = {"mode": PrefillMode.LOCAL, "max_local_tokens": 100}
    assert choose([view("d0")], **local).obstacle is Obstacle.NO_WORKER
    assert isinstance(choose([view("d0", num_cached_tokens=448)], **local), Pick)


def test_an_almost_fully_cached_prompt_is_prefilled_where_it_lies(choose, view) -> None:
    decodes = [view("d0", num_cached_tokens=496), view("d1")]
    choice = choose(decodes, [view("p0")], mode=PrefillMode.EITHER)
    assert (choice.decode.worker_id, choice.prefill) == ("d0", None)


def test_a_faster_prefill_worker_is_worth_the_transfer(choose, view) -> None:
    prefill = view("p0", prefill_tokens_per_s=10_000.0)
    assert choose([view("d0")], [prefill], mode=PrefillMode.EITHER).prefill is prefill


def test_a_slow_link_is_not_worth_a_fast_prefill_worker(choose, view) -> None:
    prefill = view("p0", prefill_tokens_per_s=10_000.0)
    decode = view("d0", handoff_bytes_per_s=1e6)
    assert choose([decode], [prefill], mode=PrefillMode.EITHER).prefill is None


@pytest.mark.parametrize(("chunk_tokens", "steps_s"), [(256, 0.02), (255, 0.03), (512, 0.01)])
def test_the_last_step_of_a_local_prefill_counts_in_full(
    choose, view, chunk_tokens: int, steps_s: float
) -> None:
    decode = view("d0", num_running=1, num_sequences=1, chunk_tokens=chunk_tokens)
    choice = choose([decode], mode=PrefillMode.LOCAL)
    assert choice.reasons.chosen.costs.steps_s == pytest.approx(steps_s)


def test_one_step_less_decides_between_workers_that_are_alike(choose, view) -> None:
    running = {"num_running": 1, "num_sequences": 1}
    decodes = [view("d0", chunk_tokens=511, **running), view("d1", chunk_tokens=512, **running)]
    chosen = {choose(decodes, mode=PrefillMode.LOCAL, seed=seed).decode for seed in range(20)}
    assert chosen == {decodes[1]}


def test_equal_workers_share_and_the_same_seed_chooses_alike(choose, view) -> None:
    decodes, prefills = [view("d0"), view("d1")], [view("p0"), view("p1")]

    def chosen(seed: int) -> tuple[str, str]:
        choice = choose(decodes, prefills, seed=seed)
        return choice.decode.worker_id, choice.prefill.worker_id

    assert chosen(7) == chosen(7)
    assert len({chosen(seed) for seed in range(40)}) == 4


def test_extra_slots_are_for_one_choice_of_a_quiet_tenant_that_is_prefilled_elsewhere(
    choose, view
) -> None:
    full = view("d0", num_batch_slots_free=0, num_extra_slots_free=2)
    assert choose([full], [view("p0")], is_quiet=True).decode is full
    for changes in ({}, {"is_quiet": True, "num_choices": 2}):
        assert choose([full], [view("p0")], **changes).obstacle is Obstacle.NO_ROOM
    alone = choose([full], mode=PrefillMode.LOCAL, is_quiet=True)
    assert alone.obstacle is Obstacle.NO_ROOM
