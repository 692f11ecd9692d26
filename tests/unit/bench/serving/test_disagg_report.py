"""What the comparison of arrangements makes of the answers of its two loads."""

import pytest

from bench.serving.disagg import summarize
from bench.serving.disagg_report import render


def request(began: float, *text_times: float, num_prompt: int = 10) -> dict[str, object]:
    return {
        "began_s": began,
        "ended_s": text_times[-1],
        "text_times_s": list(text_times),
        "num_output_tokens": len(text_times),
        "num_prompt_tokens": num_prompt,
    }


def answer(*requests: dict[str, object]) -> dict[str, object]:
    return {"wall_s": 2.0, "errors": [], "requests": list(requests)}


def test_only_gaps_while_a_long_prompt_was_under_way_count() -> None:
    streams = answer(request(0.0, 0.1, 0.2, 0.7, 0.8, 5.0))
    long = answer(request(0.3, 0.6, 0.9, num_prompt=2000))
    summary = summarize(streams, long)
    assert summary["num_gaps"] == 1
    assert summary["itl_p95_s"] == pytest.approx(0.5)
    assert summary["long_ttft_p50_s"] == pytest.approx(0.3)
    assert summary["long_first_gap_p50_s"] == pytest.approx(0.3)
    assert summary["stream_tokens_per_s"] == 2.5
    assert summary["long_tokens_per_s"] == 1000


def test_a_run_that_failed_has_no_figures_but_its_error() -> None:
    summary = summarize({"wall_s": 2.0, "errors": ["gone"], "requests": []}, answer())
    assert summary["num_errors"] == 1
    assert summary["first_error"] == "gone"
    assert summary["itl_p95_s"] is None


def test_the_table_has_medians_over_the_rounds_and_the_curve_names_the_way() -> None:
    long = answer(request(0.0, 1.0, num_prompt=2000))
    runs = [
        {"part": "disagg", "arrangement": "auto", "others_cpu": 0.0}
        | summarize(answer(request(0.0, 0.1, 0.1 + gap)), long)
        for gap in (0.1, 0.3, 0.2)
    ]
    rates = {
        "part": "rates",
        "prefill_tokens_per_s": 5000.0,
        "local_prefill_tokens_per_s": 4000.0,
        "decode_step_s": 0.01,
        "handoff_bytes_per_s": 0.0,
        "handoff_s": 0.004,
        "chunk_tokens": 100,
        "block_size": 16,
        "block_bytes": 65536,
    }
    points = [
        {
            "part": "break_even",
            "num_running": 1,
            "num_prompt_tokens": 64,
            "cached_share": share,
            "is_local": is_local,
        }
        for share, is_local in ((0.9, True), (0.0, False))
    ]
    text = render([*runs, rates, *points])
    assert "| auto | 3 | 200.0 | 200.0 | 200.0 |" in text
    assert "| 1 | 64 | remote | local |" in text
    assert "adds 4.0 ms and more, not measured" in text
