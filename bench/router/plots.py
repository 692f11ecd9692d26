"""Plots of the router's benchmark as SVG pictures that stand alone."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 176, 34, 44
_COLOURS = ("#0b6e99", "#6b6b6b", "#d9730d", "#9b2fae", "#2e8540")
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "1 3")

Line = tuple[str, Sequence[tuple[float, float]]]


def write_plots(records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write one picture of each trace that has been replayed."""
    folder.mkdir(parents=True, exist_ok=True)
    replays = [record for record in records if record["part"] == "replay"]
    for trace in dict.fromkeys(record["trace"] for record in replays):
        picture = ttft_plot(trace, [r for r in replays if r["trace"] == trace])
        (folder / f"router-{trace.replace(' ', '-')}.svg").write_text(picture)


def ttft_plot(trace: str, records: Sequence[dict[str, Any]]) -> str:
    """The share of requests that have their first token by a time, one line for each placement."""
    lines = []
    for record in records:
        quantiles = record["ttft_quantiles_s"]
        last = len(quantiles) - 1
        points = [(max(0.001, s), number / last) for number, s in enumerate(quantiles)]
        lines.append((record["policy"], points))
    title = f"{trace.capitalize()}: time to first token"
    return log_plot(title, "seconds", "share of requests", lines, y_ticks=(0, 0.25, 0.5, 0.75, 1))


def log_plot(
    title: str, x_label: str, y_label: str, lines: Sequence[Line], y_ticks: Sequence[float]
) -> str:
    """A line chart whose x axis is logarithmic."""
    low, high = _decades([x for _, points in lines for x, _ in points])
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + width * (math.log10(x) - low) / (high - low)

    def level(y: float) -> float:
        return _TOP + height * (1 - y / y_ticks[-1])

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    bottom, right = level(0), _LEFT + width
    for y in y_ticks:
        parts.append(f'<path d="M{_LEFT} {level(y):.1f}H{right}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{level(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for power in range(low, high + 1):
        x = across(10.0**power)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom:.1f}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{10.0**power:g}</text>'
        )
    middle = f'x="{_LEFT + width / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle"'
    parts.append(f"<text {middle}>{escape(x_label)}</text>")
    turned = f'transform="translate(14 {_TOP + height / 2:.0f}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {turned}>{escape(y_label)}</text>")
    for number, (name, points) in enumerate(lines):
        placed = [(across(x), level(y)) for x, y in points]
        parts += _line(number, name, placed, right)
    return "\n".join([*parts, "</svg>\n"])


def _line(number: int, name: str, placed: Sequence[tuple[float, float]], right: float) -> list[str]:
    """The line and its entry in the legend."""
    colour = _COLOURS[number % len(_COLOURS)]
    stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{_DASHES[number % 5]}"'
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    y = _TOP + 12 + 20 * number
    return [
        f'<path d="{path}" fill="none" {stroke}/>',
        f'<path d="M{right + 14} {y}h26" {stroke}/>',
        f'<text x="{right + 46}" y="{y + 4}">{escape(name)}</text>',
    ]


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))
