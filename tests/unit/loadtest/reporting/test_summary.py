"""Counted values to percentiles, rates and pages."""

import json
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from loadtest.reporting import baseline, charts, report, summary, verdict
from loadtest.reporting.summary import (
    GENERATOR,
    GOODPUT,
    INPUT,
    ITL,
    LAG,
    OUTPUT,
    REQUEST,
    TTFT,
    Row,
)


def row(values: list[float], second: int = 100, num_failed: int = 0) -> Row:
    return Row(
        num=len(values),
        num_failed=num_failed,
        total=sum(values),
        counts=Counter(values),
        by_second=Counter({second: len(values)}),
        failed_by_second=Counter({second: num_failed}) if num_failed else Counter(),
    )


ROWS = {
    ("chat", REQUEST): row([500, 700], second=101, num_failed=1),
    ("chat", TTFT): row([100, 300]),
    ("chat", ITL): row([10.0] * 9, second=101),
    ("chat", GOODPUT): row([500, 700], second=101, num_failed=1),
    ("chat", INPUT): row([40.0]),
    ("chat", OUTPUT): row([18.0]),
    ("rag", REQUEST): row([900], second=104),
    ("rag", TTFT): row([200], second=104),
    ("rag", ITL): row([20.0], second=104),
    ("rag", GOODPUT): row([900], second=104),
    ("rag", OUTPUT): row([2.0]),
    (GENERATOR, LAG): row([0.1]),
}


def test_nearest_rank_percentiles() -> None:
    hundred = row([float(value) for value in range(1, 101)])
    assert hundred.percentile(0.0) == 1
    assert hundred.percentile(0.99) == 99
    assert hundred.percentile(1.0) == 100
    assert Row().percentile(0.5) is None


def test_rows_of_two_processes_add_up() -> None:
    both = row([1.0, 2.0])
    both += row([2.0, 9.0], num_failed=1)
    assert (both.num, both.num_failed, both.total) == (4, 1, 14)
    assert both.percentiles()["p50"] == 2
    assert both.by_second[100] == 4


def test_all_kinds_together_leave_the_generator_out() -> None:
    together = summary.summarize_kind(ROWS, summary.ALL, duration_s=4)
    assert (together["requests"], together["failed"]) == (3, 1)
    assert together["ttft_ms"]["p50"] == 200
    assert together["output_tokens_per_s"] == 5
    assert together["goodput_share"] == pytest.approx(2 / 3)
    assert together["goodput_per_s"] == 0.5
    assert summary.kind_names(ROWS) == ["chat", "rag"]


def test_rates_fall_into_the_seconds_they_belong_to() -> None:
    series = summary.rates_over_time(ROWS, began_s=100, ended_s=105, bin_s=2)
    assert [point["t"] for point in series] == [1, 3, 4.5]
    assert [point["output_tokens_per_s"] for point in series] == [9, 0, 2]
    assert [point["requests_per_s"] for point in series] == [1, 0, 1]
    assert [point["failed_per_s"] for point in series] == [0.5, 0, 0]
    assert [point["goodput_per_s"] for point in series] == [0.5, 0, 1]


def test_typical_is_the_median_of_each_kind() -> None:
    samples = [{"kind": kind, "e2e_ms": ms} for kind in "ba" for ms in (5.0, 1.0, 9.0, 6.0)]
    found = summary.typical(samples)
    assert [(one["kind"], one["e2e_ms"]) for one in found] == [("a", 5.0), ("b", 5.0)]


def test_ticks_and_numbers() -> None:
    assert charts.ticks(930) == [0, 500, 1000]
    assert charts.ticks(0.35) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert [charts.number(value) for value in (0, 0.01234, 4.0, 4.567, 12345)] == [
        "0",
        "0.0123",
        "4",
        "4.57",
        "12,345",
    ]


def test_a_chart_breaks_where_nothing_was_measured() -> None:
    svg = charts.line_chart("x", [charts.Series("p50", "a", [(0, 1), (1, None), (2, 3), (3, 4)])])
    assert svg.count("M") - svg.count("grid") == 2
    assert svg.count("<circle") == 3


def run_summary(**changes: Any) -> dict[str, Any]:
    together = summary.summarize_kind(ROWS, summary.ALL, 4)
    counted = {"p50": 1.0, "p90": 2.0, "p95": None, "p99": None}
    moment = {"t": 3.0, "users": 2, "ttft_ms": counted, "itl_ms": counted, "e2e_ms": counted}
    stage = {"name": "queue", "began_ms": 0.0, "length_ms": 5.0, "seen_by": "server"}
    return {
        "scenario": "mixed",
        "title": "A <b>title</b>",
        "host": "http://h",
        "model": "m",
        "began_at_s": 0.0,
        "duration_s": 4.0,
        "load": {"shape": "constant", "users": 2, "duration_s": 4.0},
        "num_processes": 1,
        "notes": ["long_document: cut"],
        "is_kept": False,
        "slo": [verdict.as_dict(one) for one in verdict.evaluate({"goodput_share": 0.9}, together)],
        "goodput_limits": {"chat": (1000, 50), "rag": (None, None)},
        "all": together,
        "kinds": [summary.summarize_kind(ROWS, kind, 4) for kind in ("chat", "rag")],
        "percentiles_over_time": [moment],
        "rates_over_time": summary.rates_over_time(ROWS, 100, 105, 3),
        "typical_requests": [
            {
                "kind": "chat",
                "request_id": "req_1",
                "e2e_ms": 10.0,
                "ttft_ms": 5.0,
                "input_tokens": 40,
                "output_tokens": 18,
                "stages": [stage],
            }
        ],
        "slowest_requests": [
            {
                "kind": "chat",
                "request_id": "req_9",
                "e2e_ms": 99.0,
                "ttft_ms": 5.0,
                "input_tokens": 40,
                "output_tokens": 18,
                "stages": [stage],
            }
        ],
        "traces_url": "",
        "comparison": [],
        "errors": [{"kind": "chat", "error": "status 429", "num": 1}],
        "generator": {"lag_ms": {"p50": 0.1, "p99": 30.0}, "max_cpu_percent": 12.0},
        **changes,
    }


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = [text for name, text in attrs if name in ("src", "href") and text]
        self.outside += found
        assert tag not in ("script", "link", "img")


def test_the_page_needs_nothing_from_elsewhere_and_escapes() -> None:
    page = report.html(run_summary())
    links = Links()
    links.feed(page)
    assert links.outside == []
    assert "A &lt;b&gt;title&lt;/b&gt;" in page
    assert "baton trace req_1" in page
    assert "status 429" in page
    assert "was 30 ms late" in page
    assert "passed" in report.html(run_summary(is_kept=True))


def test_a_page_of_a_running_test_is_renewed_in_place_and_one_of_an_ended_test_is_not() -> None:
    running = report.html(run_summary(), refresh_s=3)
    assert ">running<" in running
    assert "replaceWith" in running
    for page in (running, report.html(run_summary())):
        assert "http-equiv" not in page  # that would jump to the top
    assert ">running<" not in report.html(run_summary())


def test_the_slowest_requests_lead_to_their_traces() -> None:
    assert "baton trace ID" in report.html(run_summary())
    page = report.html(run_summary(traces_url="http://jaeger:16686/"))
    (link,) = re.findall(r'href="([^"]*)"', page)
    asked = parse_qs(urlsplit(unescape(link)).query)
    assert json.loads(asked["tags"][0]) == {"baton.request_id": "req_9"}
    assert "queue, 5 ms (server)" in page


def test_a_generator_that_was_late_is_told_and_does_not_pass() -> None:
    late = verdict.evaluate({"lag_p99_ms": 100}, {"lag_ms": {"p99": 150.0}})
    run = run_summary(slo=[verdict.as_dict(one) for one in late])
    assert not late[0].is_kept
    assert "this run does not pass" in report.html(run)
    assert "FAIL  lag_p99_ms <= 100: 150" in report.text(run)


def test_no_header_of_the_page_is_empty() -> None:
    page = report.html(run_summary(comparison=baseline.compare(OLD, run_summary(), 0.1)))
    assert "<th></th>" not in page
    assert "worse" in page


OLD = {"all": {"ttft_ms": {"p50": 100.0}, "goodput_per_s": 1.0, "failed_share": 0.3}}


def test_what_became_worse_than_the_tolerance_is_told() -> None:
    now = {"all": {"ttft_ms": {"p50": 115.0}, "goodput_per_s": 0.8, "failed_share": 0.35}}
    worse = {row["name"]: row["is_worse"] for row in baseline.compare(OLD, now, 0.1)}
    assert worse == {"ttft_p50_ms": True, "goodput_per_s": True, "failed_share": False}
    better = {"all": {"ttft_ms": {"p50": 50.0}, "goodput_per_s": 2.0, "failed_share": 0.0}}
    assert not any(row["is_worse"] for row in baseline.compare(OLD, better, 0.1))


def test_a_baseline_of_another_load_is_told() -> None:
    told = baseline.differences({"scenario": "mixed", "model": "a"}, {"scenario": "mixed"})
    assert told == ["the baseline had another model: a"]


def test_a_baseline_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    for name in ("x.json", "none.json"):
        with pytest.raises(baseline.BaselineError, match=name):
            baseline.read(tmp_path / name)


def test_the_page_tells_limits_in_words_and_units() -> None:
    assert report.limit_words("ttft_p95_ms") == "time to first token, p95"
    assert report.in_unit(5000, "ttft_p95_ms") == "5,000 ms"
    assert report.in_unit(0.667, "goodput_share") == "66.7 %"
    assert report.in_unit(None, "itl_p99_ms") == "–"
    page = report.html(run_summary())
    assert "≥ 90 %" in page
    assert "goodput_share" in page


def test_the_terminal_shows_every_limit_and_the_verdict() -> None:
    lines = report.text(run_summary())
    assert "FAIL  goodput_share >= 0.9: 0.667" in lines
    assert lines.endswith("FAILED")
    assert report.text(run_summary(is_kept=True)).endswith("PASSED")


def test_the_summary_is_json() -> None:
    assert json.loads(json.dumps(run_summary()))["all"]["requests"] == 3
