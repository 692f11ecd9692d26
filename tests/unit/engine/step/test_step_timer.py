"""What a worker says of its speed follows its steps."""

import pytest

from baton.engine.step.step_timer import LoadMeter


def test_nothing_is_measured_before_the_first_step() -> None:
    meter = LoadMeter()
    meter.observe(0.0, 100, 1)
    assert (meter.prefill_tokens_per_s, meter.decode_step_s) == (0, 0)


def test_the_decodes_of_a_mixed_step_do_not_slow_its_prefill_rate() -> None:
    meter = LoadMeter()
    meter.observe(0.02, 0, 8)
    for _ in range(20):
        meter.observe(0.02 + 0.08, 400, 8)
    assert meter.prefill_tokens_per_s == pytest.approx(5000)
    assert meter.decode_step_s == pytest.approx(0.02)


def test_a_few_tokens_beside_decodes_do_not_hide_the_rate_of_a_whole_prompt() -> None:
    meter = LoadMeter()
    meter.observe(0.02, 0, 8)
    meter.observe(0.4, 2000, 0)
    for _ in range(5):
        meter.observe(0.021, 3, 8)
    assert meter.prefill_tokens_per_s > 4500


@pytest.mark.parametrize("num_tokens", [16, 64, 512])
@pytest.mark.parametrize("decodes", ["beside", "before", "never"])
def test_what_a_step_costs_by_itself_does_not_hide_the_rate_of_prompts(
    decodes: str, num_tokens: int
) -> None:
    """So that workers of both roles report the same for the same prompts."""
    meter = LoadMeter()
    if decodes == "never":
        meter.observe_short(0.02)
    else:
        meter.observe(0.02, 0, 3)
    for _ in range(200):
        meter.observe(0.02 + num_tokens / 5000, num_tokens, 3 if decodes == "beside" else 0)
    assert meter.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)


@pytest.mark.parametrize("num_tokens", [64, 128, 512])
def test_a_prompt_by_itself_does_not_look_free_after_a_large_batch(num_tokens: int) -> None:
    meter = LoadMeter()
    meter.observe(0.021, 0, 1)
    for _ in range(100):
        meter.observe(0.06, 0, 32)
    meter.observe(0.02 + num_tokens / 5000, num_tokens, 0)
    assert meter.prefill_tokens_per_s < 7500


def test_a_machine_that_became_slower_is_noticed_by_short_prompts_too() -> None:
    meter = LoadMeter()
    meter.observe_short(0.02)
    meter.observe(0.02 + 2000 / 5000, 2000, 0)
    for _ in range(100):
        meter.observe(0.02 + 16 / 1000, 16, 0)
    assert meter.prefill_tokens_per_s < 2000


def test_a_mixed_step_counts_for_decode_only_until_one_is_without_prefill() -> None:
    meter = LoadMeter()
    meter.observe(0.1, 400, 8)
    assert meter.decode_step_s == pytest.approx(0.1)
    meter.observe(0.02, 0, 8)
    assert meter.decode_step_s == pytest.approx(0.02)


def test_the_figures_follow_a_machine_that_became_slower() -> None:
    meter = LoadMeter()
    for factor in (1, 2):
        for _ in range(60):
            meter.observe(0.1 * factor, 500, 0)
            meter.observe(0.02 * factor, 0, 8)
    assert meter.prefill_tokens_per_s == pytest.approx(500 / (0.2 - 0.02), rel=0.02)
    assert meter.decode_step_s == pytest.approx(0.04, rel=0.01)
