"""What a worker says of its speed follows its steps."""

import pytest

from baton.engine.load_report import LoadMeter


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


@pytest.mark.parametrize("num_decodes", [0, 3])
def test_what_a_step_costs_by_itself_does_not_hide_the_rate_of_long_prompts(
    num_decodes: int,
) -> None:
    meter = LoadMeter()
    meter.observe(0.02, 0, 3)
    for _ in range(200):
        meter.observe(0.02 + 16 / 5000, 16, num_decodes)
    assert meter.prefill_tokens_per_s == pytest.approx(5000, rel=0.01)


def test_many_short_prompts_do_not_make_a_long_one_forgotten() -> None:
    meter = LoadMeter()
    meter.observe(0.4, 2000, 0)
    for _ in range(250):
        meter.observe(0.02, 16, 0)
    assert meter.prefill_tokens_per_s > 4000


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
    assert meter.prefill_tokens_per_s == pytest.approx(500 / (0.2 - 0.04), rel=0.01)
    assert meter.decode_step_s == pytest.approx(0.04, rel=0.01)
