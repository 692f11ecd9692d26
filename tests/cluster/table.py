"""The table of a run: one row for each case, and the page that keeps the newest row of each."""

from dataclasses import astuple, dataclass, fields
from pathlib import Path

BEGIN, END = "<!-- cluster:begin -->\n", "<!-- cluster:end -->"


@dataclass(frozen=True)
class Row:
    """A case: how often it was made, and what came of the requests around it."""

    case: str
    times: int
    requests: int
    failed: int
    wrong: int
    worst: str


HEAD = ("Case", "Times", "Requests", "Failed", "Wrong text", "Worst answer")
RULE = ("---",) * len(fields(Row))


def line(cells: tuple[object, ...]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def rows_of(page: str) -> dict[str, str]:
    """By case, the lines of the page's table."""
    table = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    return {text.split("|")[1].strip(): text for text in table[2:]}


def write(page: Path, rows: list[Row]) -> None:
    """Put rows into the page's table, each in the place of the row of the same case."""
    text = page.read_text()
    lines = rows_of(text) | {row.case: line(astuple(row)) for row in rows}
    table = "\n".join([line(HEAD), line(RULE), *lines.values()])
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}{table}\n{END}{rest.partition(END)[2]}")
