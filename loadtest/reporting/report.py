"""A run's summary for people: a self-contained page, and lines for a terminal.

Reads the dict of `control.LoadTest.summary` and decides nothing.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from loadtest.reporting.charts import Series, line_chart, number
from loadtest.reporting.verdict import parse_limit

Summary = Mapping[str, Any]

_FOLDER = Path(__file__).parent
_NOTHING = "–"
# As its spans call the gateway.
_SERVICE = "baton-gateway"
_WORDS = {
    "ttft_ms": "time to first token",
    "itl_ms": "time between tokens",
    "e2e_ms": "whole request",
    "late_ms": "sent later than due",
    "lag_ms": "the load generator's own lag",
    "failed_share": "failed requests",
    "goodput_share": "goodput",
    "goodput_per_s": "goodput",
    "output_tokens_per_s": "output",
    "requests_per_s": "requests",
}
_UNITS = {"goodput_per_s": "requests/s", "output_tokens_per_s": "tokens/s", "requests_per_s": "/s"}


def moment_line(moment: Mapping[str, Any]) -> str:
    """The figures of the last seconds, in one line."""
    ttft, itl = moment["ttft_ms"], moment["itl_ms"]
    return (
        f"{moment['t']:5.0f} s  {moment['users']:3d} users  "
        f"TTFT p50 {shown(ttft['p50'])} p99 {shown(ttft['p99'])} ms  "
        f"ITL p50 {shown(itl['p50'])} p99 {shown(itl['p99'])} ms"
    )


def text(summary: Summary) -> str:
    """The terminal's report."""
    columns = ("requests", "failed", "in tok", "out tok", "TTFT p50", "p99", "ITL p50", "p99",
               "tok/s each", "e2e p50", "goodput")  # fmt: skip
    lines = [
        "",
        f"{summary['title']}",
        f"{summary['host']}  {summary['model']}  {shown(summary['duration_s'])} s",
        *(f"  note: {note}" for note in summary["notes"]),
        "",
        f"{'':14}" + "".join(f"{column:>11}" for column in columns),
    ]
    for row in (*summary["kinds"], summary["all"]):
        cells = (
            row["requests"], row["failed"], row["input_tokens"]["p50"], row["output_tokens"]["p50"],
            row["ttft_ms"]["p50"], row["ttft_ms"]["p99"], row["itl_ms"]["p50"],
            row["itl_ms"]["p99"], row["tokens_per_s_each"]["p50"], row["e2e_ms"]["p50"],
        )  # fmt: skip
        shown_cells = (*(shown(cell) for cell in cells), percent(row["goodput_share"]))
        lines.append(f"{row['kind']:14}" + "".join(f"{cell:>11}" for cell in shown_cells))
    together = summary["all"]
    lines += [
        f"times in ms; {shown(together['output_tokens_per_s'])} tokens/s out, "
        f"{shown(together['input_tokens_per_s'])} in, "
        f"{shown(together['goodput_per_s'])} good requests/s",
        "",
        *(_slo_line(slo) for slo in summary["slo"]),
        *(_comparison_line(row) for row in summary["comparison"]),
        *(f"  {one['num']:5d} x {one['kind']}: {one['error']}" for one in summary["errors"]),
        *(f"  {warning}" for warning in warnings(summary)),
        "PASSED" if summary["is_kept"] else "FAILED",
    ]
    return "\n".join(lines)


def html(summary: Summary, refresh_s: int = 0) -> str:
    """The whole page. With `refresh_s` it renews its content in place, for a running test."""
    template = _environment().get_template("report.html.j2")
    return template.render(
        run=summary,
        refresh_s=refresh_s,
        began=datetime.fromtimestamp(summary["began_at_s"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        charts=_charts(summary),
        goodput_limits=_by_limits(summary["goodput_limits"]),
        warnings=warnings(summary),
        trace_link=lambda request_id: trace_link(summary, request_id),
    )


def warnings(summary: Summary) -> list[str]:
    """Warnings that the load generator itself may have been measured."""
    generator, found = summary["generator"], []
    if generator["max_cpu_percent"] > 90:
        found.append(
            f"the load generator used {shown(generator['max_cpu_percent'])} % of a core: "
            "use more processes"
        )
    if (lag_ms := generator["lag_ms"]["p99"] or 0) > 20:
        found.append(
            f"the load generator was {shown(lag_ms)} ms late (p99): times are too long by that"
        )
    if any(slo["name"].startswith("lag_") and not slo["is_kept"] for slo in summary["slo"]):
        found.append("this run does not pass: what was late may have been the generator")
    return found


def trace_link(summary: Summary, request_id: str) -> str:
    """The page of a Jaeger that finds the request's trace; empty without a Jaeger."""
    base = summary["traces_url"].rstrip("/")
    if not base or not request_id:
        return ""
    tags = json.dumps({"baton.request_id": request_id})
    asked = {"service": _SERVICE, "tags": tags, "lookback": "2d", "limit": "20"}
    return f"{base}/search?{urlencode(asked)}"


def shown(value: float | None) -> str:
    return _NOTHING if value is None else number(value)


def percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{number(share * 100)} %"


def limit_words(name: str) -> str:
    """The name of a limit in words."""
    (what, *percentile), _ = parse_limit(name)
    return ", ".join([_WORDS[what], *percentile])


def in_unit(value: float | None, name: str) -> str:
    """A figure with the unit of the limit of this name."""
    if value is None:
        return _NOTHING
    if name.endswith("_share"):
        return percent(value)
    return f"{number(value)} {_UNITS.get(name, 'ms')}"


def _by_limits(limits: Mapping[str, Sequence[float | None]]) -> list[tuple[str, str]]:
    """Kinds of users that have the same limits, and these in words."""
    grouped: dict[str, list[str]] = {}
    for kind, (ttft_ms, tpot_ms) in limits.items():
        parts = [
            f"{number(limit)} ms {what}"
            for limit, what in ((ttft_ms, "to the first token"), (tpot_ms, "per token after it"))
            if limit is not None
        ]
        grouped.setdefault(" and ".join(parts) or "any time", []).append(kind.replace("_", " "))
    return [(", ".join(kinds), words) for words, kinds in grouped.items()]


def _slo_line(slo: Mapping[str, Any]) -> str:
    sign = "<=" if slo["is_upper"] else ">="
    kept = "ok  " if slo["is_kept"] else "FAIL"
    return f"{kept}  {slo['name']} {sign} {shown(slo['limit'])}: {shown(slo['actual'])}"


def _comparison_line(row: Mapping[str, Any]) -> str:
    told = "WORSE" if row["is_worse"] else "     "
    return (
        f"{told} {row['name']}: {shown(row['before'])} before, {shown(row['now'])} now "
        f"({row['change']:+.1%})"
    )


def _charts(summary: Summary) -> list[dict[str, Any]]:
    percentiles, rates = summary["percentiles_over_time"], summary["rates_over_time"]

    def of(name: str, style: str, moments: Sequence[Mapping[str, Any]], *path: str) -> Series:
        points = []
        for moment in moments:
            value: Any = moment
            for key in path:
                value = value[key]
            points.append((moment["t"], value))
        return Series(name, style, points)

    def pair(key: str) -> list[Series]:
        return [of("p50", "a", percentiles, key, "p50"), of("p99", "b", percentiles, key, "p99")]

    plans = [
        ("Time to first token", "ms", pair("ttft_ms")),
        ("Between tokens", "ms", pair("itl_ms")),
        ("Output tokens", "tokens/s", [of("tokens/s", "a", rates, "output_tokens_per_s")]),
        (
            "Requests",
            "per s",
            [
                of("answered", "a", rates, "requests_per_s"),
                of("goodput", "c", rates, "goodput_per_s"),
                of("failed", "d", rates, "failed_per_s"),
            ],
        ),
        ("Whole request", "ms", pair("e2e_ms")),
        ("Users", "at once", [of("users", "a", percentiles, "users")]),
    ]
    return [
        {"title": title, "unit": unit, "series": series, "svg": Markup(line_chart(title, series))}
        for title, unit, series in plans
    ]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        shown=shown, percent=percent, limit_words=limit_words, in_unit=in_unit
    )
    return environment
