"""What became of a handoff that something went wrong with, and the table of two connectors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# An answer that has not come by then does not come: without a fault it takes half a second.
ANSWER_LIMIT_S = 60.0
# Blocks that a request holds so long after it was given up are counted as leaked.
HELD_LIMIT_S = 12.0
NUM_TOKENS = 24
RIGHT, WRONG, NOTHING, DIED = "right", "wrong text", "nothing", "the engine died"

# In the order of the table: name, and what is done.
CASES = {
    "none": "no fault",
    "sizes": "the prefill worker's blocks have 32 tokens, the decode worker's 64",
    "foreign": "a request that names the blocks of another one",
    "replayed": "a ticket once more, when its blocks are others'",
    "hung": "the prefill worker stands still before the blocks are read",
    "killed": "the prefill worker is killed before the blocks are read",
    "restarted": "the same, and another one has its address then",
    "never": "the prefill worker never sends",
    "parameter": "a request without a parameter of the handoff",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case with one connector. `later`: the answer to the same prompt, without a handoff, from
    the same decode worker afterwards. `num_held`: the decode worker's blocks that are not free
    HELD_LIMIT_S after the request has ended or was given up."""

    answer: str
    seconds: float
    later: str = RIGHT
    num_held: int = 0

    @property
    def is_wrong(self) -> bool:
        return WRONG in (self.answer, self.later)

    @property
    def is_hung(self) -> bool:
        return NOTHING in (self.answer, self.later)

    @property
    def is_leaked(self) -> bool:
        return self.num_held > 0

    def shown(self) -> str:
        """A cell of the table."""
        parts = [f"{self.answer}, {self.seconds:.1f} s"]
        if self.later != RIGHT:
            parts.append(f"later: {self.later}")
        if self.num_held:
            parts.append(f"{self.num_held} blocks not free after {HELD_LIMIT_S:.0f} s")
        return "; ".join(parts)


def judge(tokens: Sequence[int] | None, right: Sequence[int]) -> str:
    """What an answer is, None where none came."""
    if tokens is None:
        return NOTHING
    return RIGHT if list(tokens) == list(right) else WRONG


def table(columns: dict[str, dict[str, Outcome]]) -> list[str]:
    """Markdown: a row for each case, a column for each connector, and what they come to."""
    rows = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, title in CASES.items():
        cells = [results[name].shown() if name in results else "-" for results in columns.values()]
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    sums = [_sum(results.values()) for results in columns.values()]
    rows.append("| **all** | " + " | ".join(sums) + " |")
    return rows


def _sum(results: Iterable[Outcome]) -> str:
    outcomes = list(results)
    counts = {
        "wrong": sum(each.is_wrong for each in outcomes),
        "hung": sum(each.is_hung for each in outcomes),
        "leaked": sum(each.is_leaked for each in outcomes),
        "died": sum(each.answer == DIED for each in outcomes),
    }
    return ", ".join(f"{number} {name}" for name, number in counts.items())
