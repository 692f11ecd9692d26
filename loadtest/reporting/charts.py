"""Line charts as SVG, for a self-contained page. Colours are CSS classes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 26
_NUM_TICKS = 4
# Room for the names of a chart that stands alone.
_BELOW = 34

Point = tuple[float, float | None]
_Placing = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `style` is a CSS class; a point without a value is a gap."""

    name: str
    style: str
    points: Sequence[Point]
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """What the axes are, for a chart that stands alone: then its lines are named in it, too."""

    across: str
    up: str


def ticks(highest: float) -> list[float]:
    """Ticks from 0 to above `highest`, in steps of 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def number(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def line_chart(label: str, series: Sequence[Series], axis: Axis | None = None) -> str:
    """A chart with both axes from 0. Without `axis`, x is seconds since the start."""
    values = [y for one in series for _, y in one.points if y is not None]
    x_ticks = ticks(max((x for one in series for x, _ in one.points), default=1.0))
    y_ticks = ticks(max(values, default=1.0))

    def place(x: float, y: float) -> tuple[float, float]:
        width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        return _LEFT + width * x / x_ticks[-1], _TOP + height * (1 - y / y_ticks[-1])

    height = HEIGHT + (_BELOW if axis else 0)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    for y in y_ticks:
        left, level = place(0, y)
        parts.append(f'<path class="grid" d="M{left:.1f} {level:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{left - 6:.1f}" y="{level + 4:.1f}">{number(y)}</text>')
    for x in x_ticks:
        across, bottom = place(x, 0)
        parts.append(f'<text class="x" x="{across:.1f}" y="{bottom + 17:.1f}">{number(x)}</text>')
    for one in series:
        parts += _line(one, place, "" if axis else " s")
    if axis:
        parts += _names(series, axis)
    parts.append("</svg>")
    return "".join(parts)


def _names(series: Sequence[Series], axis: Axis) -> list[str]:
    """The axes' names and the lines', below the chart."""
    below = HEIGHT + _BELOW - 8
    parts = [
        f'<text class="x" x="{(_LEFT + WIDTH) / 2}" y="{HEIGHT + 6}">{escape(axis.across)}</text>'
    ]
    at = _LEFT
    for one in (Series(axis.up + ":", "", ()), *(one for one in series if one.is_named)):
        if one.style:
            parts.append(
                f'<rect class="swatch {one.style}" x="{at}" y="{below - 5}" width="12" height="3"/>'
            )
            at += 17
        parts.append(f'<text x="{at}" y="{below}">{escape(one.name)}</text>')
        at += 7 * len(one.name) + 14
    return parts


def _line(series: Series, place: _Placing, unit: str) -> list[str]:
    commands, is_drawing, parts = [], False, []
    for x, y in series.points:
        if y is None:
            is_drawing = False
            continue
        across, level = place(x, y)
        commands.append(f"{'L' if is_drawing else 'M'}{across:.1f} {level:.1f}")
        is_drawing = True
        tip = f"{series.name}: {number(y)} at {number(x)}{unit}"
        parts.append(
            f'<circle class="dot {series.style}" cx="{across:.1f}" cy="{level:.1f}" r="1.8">'
            f"<title>{escape(tip)}</title></circle>"
        )
    return [f'<path class="line {series.style}" d="{"".join(commands)}"/>', *parts]
