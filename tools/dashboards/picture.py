"""A dashboard as one HTML page: its panels on their grid, roughly as Grafana draws them.

Reads the dashboard's JSON and what Prometheus answered. It is for checking by eye that titles
fit, units are right, lines can be told apart and no panel is empty.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from loadtest.reporting.charts import number, ticks
from tools.dashboards.prometheus import Line

_CELL_WIDTH, _CELL_HEIGHT = 60, 34
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 10, 8, 20
_LEGEND_LINE = 17
# Grafana's classic palette, in its order, and the colours that the dashboards name.
_PALETTE = (
    "#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0",
    "#508642", "#CCA300", "#447EBC", "#C15C17",
)  # fmt: skip
_NAMED = {
    "green": "#73BF69", "yellow": "#FADE2A", "orange": "#FF9830", "red": "#F2495C",
    "blue": "#5794F2", "purple": "#B877D9", "super-light-blue": "#C0D8FF", "text": "#ccccdc",
}  # fmt: skip
_STYLE = Path(__file__).with_name("picture.css").read_text()
_Named = tuple[str, Line]
_Points = Sequence[tuple[float, float]]


@dataclass(slots=True)
class Answer:
    """The answer to one query of a panel."""

    legend: str
    lines: list[Line] = field(default_factory=list)
    error: str = ""


def page(
    dashboard: Mapping[str, Any],
    answers: Mapping[int, Sequence[Answer]],
    start_s: float,
    end_s: float,
) -> str:
    """The whole page; `answers` are by panel id."""
    drawn, bottom = [], 0
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        bottom = max(bottom, at["y"] + at["h"])
        place = (
            f'style="left:{at["x"] * _CELL_WIDTH}px;top:{at["y"] * _CELL_HEIGHT}px;'
            f'width:{at["w"] * _CELL_WIDTH - 8}px;height:{at["h"] * _CELL_HEIGHT - 8}px"'
        )
        if panel["type"] == "row":
            drawn.append(f'<div class="row" {place}>{escape(panel["title"])}</div>')
            continue
        body = _body(panel, answers[panel["id"]], start_s, end_s)
        title = f'<h2 title="{escape(panel["description"])}">{escape(panel["title"])}</h2>'
        drawn.append(f'<div class="panel" {place}>{title}{body}</div>')
    return (
        f'<!doctype html><meta charset="utf-8"><title>{escape(dashboard["title"])}</title>'
        f"<style>{_STYLE}</style><h1>{escape(dashboard['title'])}</h1>"
        f"<p>{escape(dashboard['description'])}</p>"
        f'<div id="grid" style="width:{24 * _CELL_WIDTH}px;height:{bottom * _CELL_HEIGHT}px">'
        f"{''.join(drawn)}</div>"
    )


def in_unit(value: float, unit: str) -> str:
    """A value as Grafana writes it, with three significant digits."""
    if unit == "percentunit":
        return f"{number(value * 100)}%"
    if unit == "s":
        for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (60, 1, "s")):
            if abs(value) < limit:
                return f"{number(value * factor)} {name}" if value else "0 s"
        return f"{number(value / 60)} min"
    steps = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    ending = {"reqps": " req/s", "ops": " ops/s", "Bps": "B/s"}.get(unit, "")
    for size, prefix in steps:
        if abs(value) >= size:
            return f"{number(value / size)} {prefix}{ending.lstrip()}".rstrip()
    return f"{number(value)}{' ' if unit == 'Bps' else ''}{ending}"


def _body(panel: Mapping[str, Any], answers: Sequence[Answer], start_s: float, end_s: float) -> str:
    if errors := [answer.error for answer in answers if answer.error]:
        return f'<div class="error">{escape("; ".join(errors))}</div>'
    lines = [
        (_legend(answer.legend, line.labels), line) for answer in answers for line in answer.lines
    ]
    if not lines:
        nothing = panel["fieldConfig"]["defaults"].get("noValue", "No data")
        return f'<div class="none">{escape(nothing)}</div>'
    if panel["type"] == "stat":
        return _stats(panel, lines)
    return _chart(panel, lines, start_s, end_s)


def _legend(form: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), form)


def _colour(panel: Mapping[str, Any], name: str, place: int) -> str:
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == name:
            (colour,) = (each["value"]["fixedColor"] for each in override["properties"])
            return str(_NAMED.get(colour, colour))
    return _PALETTE[place % len(_PALETTE)]


def _stats(panel: Mapping[str, Any], lines: Sequence[_Named]) -> str:
    defaults, shown = panel["fieldConfig"]["defaults"], []
    for name, line in lines:
        value, colour = line.points[-1][1], "text"
        for step in defaults.get("thresholds", {}).get("steps", ()):
            if step["value"] is None or value >= step["value"]:
                colour = step["color"]
        figure = f'<b style="color:{_NAMED[colour]}">{in_unit(value, defaults["unit"])}</b>'
        shown.append(f"<div>{figure}{escape(name)}</div>")
    return f'<div class="stats">{"".join(shown)}</div>'


def _chart(panel: Mapping[str, Any], lines: Sequence[_Named], start_s: float, end_s: float) -> str:
    at, defaults = panel["gridPos"], panel["fieldConfig"]["defaults"]
    is_stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    width = at["w"] * _CELL_WIDTH - 10
    shown = _shown_legend(panel, lines, width)
    num_legend_lines = min(1 + sum(len(name) + 5 for name, _ in lines) * 7 // width, 3)
    height = at["h"] * _CELL_HEIGHT - 42 - num_legend_lines * _LEGEND_LINE
    drawn = _stacked(lines) if is_stacked else [(line.points, None) for _, line in lines]
    highest = max((y for points, _ in drawn for _, y in points if math.isfinite(y)), default=0)
    levels = ticks(max(highest, defaults.get("max", 0)))

    def place(at_s: float, value: float) -> tuple[float, float]:
        across = (at_s - start_s) / (end_s - start_s)
        return (
            _LEFT + (width - _LEFT - _RIGHT) * across,
            _TOP + (height - _TOP - _BOTTOM) * (1 - value / levels[-1]),
        )

    parts = [f'<svg width="{width}" height="{height}">']
    for tick in levels:
        _, level = place(start_s, tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {level:.1f}H{width - _RIGHT}"/>')
        label = in_unit(tick, defaults["unit"])
        parts.append(f'<text x="{_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{label}</text>')
    for part in range(5):
        seconds = (end_s - start_s) * part / 4
        across, _ = place(start_s + seconds, 0)
        parts.append(
            f'<text x="{across:.0f}" y="{height - 4}" text-anchor="middle">{seconds:.0f} s</text>'
        )
    for step in defaults.get("thresholds", {}).get("steps", ()):
        if step["value"] is not None and step["value"] <= levels[-1]:
            _, level = place(start_s, step["value"])
            parts.append(f'<path class="limit" d="M{_LEFT} {level:.1f}H{width - _RIGHT}"/>')
    for nth, ((name, _), (points, below)) in enumerate(zip(lines, drawn, strict=True)):
        parts.append(_path(points, below, _colour(panel, name, nth), place))
    return "".join([*parts, "</svg>", shown])


def _shown_legend(panel: Mapping[str, Any], lines: Sequence[_Named], width: int) -> str:
    entries = (
        f'<span><i style="background:{_colour(panel, name, nth)}"></i>{escape(name)}</span>'
        for nth, (name, _) in enumerate(lines)
    )
    return f'<div class="legend" style="width:{width - 18}px">{"".join(entries)}</div>'


def _stacked(lines: Sequence[_Named]) -> list[tuple[_Points, Mapping[float, float] | None]]:
    """Each line's points on top of the lines before it, and the points below them."""
    total: dict[float, float] = {}
    stacked: list[tuple[_Points, Mapping[float, float] | None]] = []
    for _, line in lines:
        below = dict(total)
        for at_s, value in line.points:
            total[at_s] = total.get(at_s, 0.0) + (value if math.isfinite(value) else 0.0)
        stacked.append(([(at_s, total[at_s]) for at_s, _ in line.points], below))
    return stacked


def _path(
    points: _Points,
    below: Mapping[float, float] | None,
    colour: str,
    place: Callable[[float, float], tuple[float, float]],
) -> str:
    known = [(at_s, value) for at_s, value in points if math.isfinite(value)]
    if not known:
        return ""
    step_s = min((b[0] - a[0] for a, b in itertools.pairwise(known)), default=0)
    line, last_s = "", -math.inf
    for at_s, value in known:
        # A missing value is a gap in the line.
        line += "{}{:.1f} {:.1f}".format(
            "M" if at_s > last_s + 1.5 * step_s else "L", *place(at_s, value)
        )
        last_s = at_s
    drawn = f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    if below is not None:
        bottom = "L".join(
            "{:.1f} {:.1f}".format(*place(at_s, below.get(at_s, 0.0))) for at_s, _ in known[::-1]
        )
        area = line.replace("M", "L").removeprefix("L")
        drawn += f'<path d="M{area}L{bottom}Z" fill="{colour}" fill-opacity="0.3"/>'
    return drawn
