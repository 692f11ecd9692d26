"""The results of a run on a GPU: tables, as JSON and as Markdown. No torch."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Cell = str | int | float | None
RESULTS_HEADING = "## Results"


@dataclass(slots=True)
class Table:
    """One part of a run. `errors` are wrong results: a run that has any has failed."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wall_s: float = 0.0


def render(tables: Iterable[Table]) -> str:
    """All tables as Markdown."""
    return "\n\n".join(map(_render_table, tables))


def _render_table(table: Table) -> str:
    lines = [f"### {table.title}", ""]
    for error in table.errors:
        lines += [f"**WRONG:** {error}", ""]
    if table.rows:
        lines.append("| " + " | ".join(table.columns) + " |")
        lines.append("|---" * len(table.columns) + "|")
        lines += ["| " + " | ".join(map(_shown, row)) + " |" for row in table.rows]
    for note in table.notes:
        lines += ["", note] if lines[-1] else [note]
    return "\n".join(lines).rstrip()


def _shown(cell: Cell) -> str:
    """A number with three significant digits and no exponent where it needs none."""
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return str(cell)
    if cell == 0 or 1e-3 <= abs(cell) < 1e6:
        digits = 0 if abs(cell) >= 100 else 1 if abs(cell) >= 10 else 2 if abs(cell) >= 1 else 4
        return f"{cell:.{digits}f}"
    return f"{cell:.2e}"


def write_run(tables: Sequence[Table], folder: Path, name: str) -> Path:
    """`results/NAME.json` below `folder`, and the tables in `folder/engine-gpu.md`.

    All after the page's heading of results is replaced; a page that is not there is made.
    """
    path = write_tables(tables, folder, name)
    page = folder / "engine-gpu.md"
    text = page.read_text() if page.is_file() else "# The engine on a GPU\n"
    kept = text.partition(f"\n{RESULTS_HEADING}\n")[0].rstrip()
    page.write_text(
        f"{kept}\n\n{RESULTS_HEADING}\n\nFrom `results/{name}.json`.\n\n{render(tables)}\n"
    )
    return path


def write_tables(tables: Sequence[Table], folder: Path, name: str) -> Path:
    """Only `results/NAME.json` below `folder`."""
    path = folder / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(table) for table in tables], indent=1) + "\n")
    return path


def read_run(path: Path) -> list[Table]:
    """The tables of an earlier run."""
    parts: list[dict[str, Any]] = json.loads(path.read_text())
    return [Table(**part) for part in parts]
