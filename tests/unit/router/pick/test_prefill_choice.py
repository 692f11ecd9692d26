"""The choice between local prefill and a prefill worker, when both are possible."""

from random import Random

import pytest

from baton.wire.pick_reasons import text_of
from services.router.fleet.views import PrefillMode, Unfit
from services.router.pick.picker import Pick, pick


@pytest.fixture
def choose(demand, policy):
    def run(decodes, prefills=(), **changes):
        return pick(
            demand(mode=PrefillMode.EITHER, **changes), decodes, prefills, policy, Random(1)
        )

    return run


@pytest.fixture
def busy(view):
    """A decode worker whose streams all wait for each local prefill."""

    def build(num_running: int = 8, **changes):
        counts = {"num_running": num_running, "num_sequences": num_running}
        return view("d0", **(counts | changes))

    return build


@pytest.mark.parametrize("num_tokens", [1, 20, 512])
def test_a_prompt_stays_on_an_idle_decode_worker(choose, view, num_tokens: int) -> None:
    assert choose([view("d0")], [view("p0")], num_prompt_tokens=num_tokens).prefill is None


def test_a_long_prompt_leaves_a_decode_worker_whose_streams_would_wait(choose, view, busy) -> None:
    choice = choose([busy()], [view("p0")], num_prompt_tokens=4000)
    assert choice.prefill.worker_id == "p0"
    reasons = text_of(choice.reasons.to_wire())
    assert "d0 +" in reasons
    assert "s streams" in reasons


def test_an_almost_fully_cached_prompt_stays_although_streams_run(choose, view, busy) -> None:
    decode = busy(num_cached_tokens=3990)
    assert choose([decode], [view("p0")], num_prompt_tokens=4000).prefill is None


def test_a_short_prompt_stays_beside_a_few_streams_when_the_prefill_worker_is_busy(
    choose, view, busy
) -> None:
    prefill = view("p0", num_queued_prefill_tokens=4000)
    assert choose([busy(2)], [prefill], num_prompt_tokens=40).prefill is None
    assert choose([busy(2)], [prefill], num_prompt_tokens=4000).prefill is prefill


def test_the_longer_a_prompt_the_fewer_streams_it_takes_to_send_it_away(choose, view, busy) -> None:
    """Each length has one break-even. A handoff costs the time of 2 of 16 tokens."""
    least = []
    for num_tokens in (16, 160, 1600):
        ways = [
            choose(
                [busy(count, handoff_bytes_per_s=8e7)],
                [view("p0", num_queued_prefill_tokens=100)],
                num_prompt_tokens=num_tokens,
            ).prefill
            is None
            for count in range(31)
        ]
        assert ways == sorted(ways, reverse=True)
        least.append(sum(ways))
    assert least == sorted(least, reverse=True)
    assert least[0] > least[-1] > 0


def test_a_few_tokens_stay_beside_a_stream_as_a_step_is_a_step_on_either_worker(
    choose, view, busy
) -> None:
    decode = busy(1, handoff_s=0.003)
    assert choose([decode], [view("p0")], num_prompt_tokens=1).prefill is None
    assert choose([decode], [view("p0")], num_prompt_tokens=100).prefill is not None


def test_an_idle_decode_worker_takes_a_prompt_from_a_busy_one(choose, view, busy) -> None:
    choice = choose([busy(), view("d1")], [view("p0")])
    assert (choice.decode.worker_id, choice.prefill) == ("d1", None)


def test_decodes_that_leave_prefill_little_of_a_step_make_the_handoff_sooner(
    choose, view, busy
) -> None:
    prefill = view("p0", num_queued_prefill_tokens=900)

    def chosen(chunk_tokens: int) -> object:
        decode = busy(1, decode_step_s=0.09, chunk_tokens=chunk_tokens)
        return choose([decode], [prefill]).prefill

    assert chosen(0) is None
    assert chosen(512) is None
    assert chosen(45) is prefill


@pytest.mark.parametrize(
    "unfit", [Unfit.LOST, Unfit.STALE, Unfit.DRAINING, Unfit.EJECTED, Unfit.EXCLUDED]
)
def test_without_a_fit_prefill_worker_decode_prefills_whatever_runs_there(
    choose, view, busy, unfit: Unfit
) -> None:
    for prefills in ([], [view("p0", unfit=unfit)]):
        choice = choose([busy(30)], prefills, num_prompt_tokens=8000)
        assert isinstance(choice, Pick)
        assert choice.prefill is None


def test_a_prefill_worker_that_became_slow_loses_to_a_busy_decode_worker(
    choose, view, busy
) -> None:
    decode = busy(4)
    assert choose([decode], [view("p0")]).prefill is not None
    assert choose([decode], [view("p0", prefill_tokens_per_s=150.0)]).prefill is None


def test_a_slow_handoff_loses_to_a_busy_decode_worker(choose, view, busy) -> None:
    assert choose([busy(4)], [view("p0")]).prefill is not None
    assert choose([busy(4, handoff_bytes_per_s=1e7)], [view("p0")]).prefill is None


def test_a_long_queue_of_prompts_on_decode_counts_too(choose, view) -> None:
    decode = view("d0", num_queued_prefill_tokens=3000)
    assert choose([decode], [view("p0")]).prefill is not None
