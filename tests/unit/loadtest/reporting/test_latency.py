"""Percentiles and rates of answers whose times are known."""

import pytest

from loadtest.reporting.latency import percentile, summarize


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 3.0), (95, 5.0), (99, 5.0), (100, 5.0)]
)
def test_percentile_is_a_value_of_the_list(percent: float, expected: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], percent) == expected


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 50) is None


def request(began: float, *text_times: float, num_tokens: int) -> dict[str, object]:
    return {
        "began_s": began,
        "ended_s": text_times[-1],
        "text_times_s": list(text_times),
        "num_output_tokens": num_tokens,
        "num_prompt_tokens": 10,
    }


def test_summary_counts_tokens_that_came_in_one_event() -> None:
    requests = [request(0.0, 1.0, 1.5, 2.0, num_tokens=5), request(0.0, 3.0, 4.0, num_tokens=2)]
    summary = summarize({"requests": requests, "errors": [], "wall_s": 4.0, "cpu_s": 0.4})
    assert summary["output_tokens_per_s"] == 7 / 4
    assert summary["ttft_p50_s"] == 1.0
    assert summary["ttft_p99_s"] == 3.0
    assert summary["itl_p50_s"] == 0.5
    assert summary["itl_p99_s"] == 1.0
    # 4 tokens in the second after the first one; 1 in the other request's.
    assert summary["tpot_p50_s"] == 0.25
    assert summary["load_cpu"] == pytest.approx(0.1)


def test_summary_of_failures_alone_says_the_first_one() -> None:
    summary = summarize({"requests": [], "errors": ["refused", "x"], "wall_s": 1.0, "cpu_s": 0.1})
    assert (summary["num_requests"], summary["num_errors"]) == (0, 2)
    assert summary["first_error"] == "refused"
    assert summary["ttft_p50_s"] is None
