"""Rows as aligned columns of text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Lines of equal columns, two spaces apart. `right` has an "r" at the place of each column that
    is aligned to the right; every row has as many cells as the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = right.ljust(len(widths))
    return [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]


def shown_s(seconds: float) -> str:
    """A duration for people: 12 s, 3 min, 5 h, 2 d."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def cut(line: str, width: int | None) -> str:
    """The line, with a mark at its end where it is wider than `width`; None = never cut."""
    return line if width is None or len(line) <= width else line[: width - 1].rstrip() + "…"
