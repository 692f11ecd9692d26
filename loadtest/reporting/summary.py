"""The summary of a run as one JSON-able dict: percentiles and rates, from rows of counted values.

The report, the live page, the terminal and the verdicts all read this. Percentiles are those of
values rounded to three digits, as Locust keeps them, so rows of several processes add up exactly.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# A row's type, as in Locust's tables.
REQUEST, TTFT, ITL, RATE = "POST", "TTFT", "ITL", "TOK/S"
GOODPUT, LATE, INPUT, OUTPUT, LAG = "GOODPUT", "LATE", "IN TOK", "OUT TOK", "LAG"
GENERATOR = "load generator"
ALL = "all"
_FIGURES = {
    "ttft_ms": TTFT,
    "itl_ms": ITL,
    "e2e_ms": REQUEST,
    "late_ms": LATE,
    "tokens_per_s_each": RATE,
    "input_tokens": INPUT,
    "output_tokens": OUTPUT,
}


@dataclass(slots=True)
class Row:
    """Values of one type of one kind of user. Rows of the same type add up."""

    num: int = 0
    num_failed: int = 0
    total: float = 0.0
    counts: Counter[float] = field(default_factory=Counter)
    # Requests, and failed ones among them, by second of the epoch.
    by_second: Counter[int] = field(default_factory=Counter)
    failed_by_second: Counter[int] = field(default_factory=Counter)

    def __iadd__(self, other: "Row") -> "Row":
        self.num += other.num
        self.num_failed += other.num_failed
        self.total += other.total
        self.counts += other.counts
        self.by_second += other.by_second
        self.failed_by_second += other.failed_by_second
        return self

    def percentile(self, share: float) -> float | None:
        """The nearest rank; None without values."""
        rank = share * (sum(self.counts.values()) - 1)
        seen = 0
        for number in sorted(self.counts):
            seen += self.counts[number]
            if seen > round(rank):
                return number
        return None

    def percentiles(self) -> dict[str, float | None]:
        return {name: self.percentile(share) for name, share in PERCENTILES.items()}


Rows = Mapping[tuple[str, str], Row]  # by (kind, type)


def all_kinds(rows: Rows, row_type: str) -> Row:
    """All kinds of users together."""
    together = Row()
    for (kind, type_), row in rows.items():
        if type_ == row_type and kind != GENERATOR:
            together += row
    return together


def kind_names(rows: Rows) -> list[str]:
    return sorted({kind for kind, row_type in rows if row_type == REQUEST})


def summarize_kind(rows: Rows, kind: str, duration_s: float) -> dict[str, Any]:
    """One line of the report; `kind` may be ALL."""

    def row(row_type: str) -> Row:
        return all_kinds(rows, row_type) if kind == ALL else rows.get((kind, row_type), Row())

    requests, goodput = row(REQUEST), row(GOODPUT)
    num_good = goodput.num - goodput.num_failed
    seconds = max(duration_s, 1e-9)
    return {
        "kind": kind,
        "requests": requests.num,
        "failed": requests.num_failed,
        "failed_share": _share(requests.num_failed, requests.num),
        "requests_per_s": requests.num / seconds,
        "input_tokens_per_s": row(INPUT).total / seconds,
        "output_tokens_per_s": row(OUTPUT).total / seconds,
        "num_output_tokens": round(row(OUTPUT).total),
        "num_input_tokens": round(row(INPUT).total),
        "goodput_share": _share(num_good, goodput.num),
        "goodput_per_s": num_good / seconds,
        **{name: row(row_type).percentiles() for name, row_type in _FIGURES.items()},
    }


def rates_over_time(rows: Rows, began_s: int, ended_s: int, bin_s: int) -> list[dict[str, float]]:
    """Tokens, requests, goodput and failures a second, in bins; `t` is a bin's middle.

    Tokens are counted as events with text come, times the tokens that an event brings on average.
    """
    events, goodput, requests = (all_kinds(rows, type_) for type_ in (ITL, GOODPUT, REQUEST))
    tokens_per_event = all_kinds(rows, OUTPUT).total / max(events.num, 1)
    series = []
    for start in range(began_s, ended_s, bin_s):
        seconds = range(start, min(start + bin_s, ended_s))

        def rate(counts: Mapping[int, int], seconds: range = seconds) -> float:
            return sum(counts.get(second, 0) for second in seconds) / len(seconds)

        series.append(
            {
                "t": start - began_s + len(seconds) / 2,
                "output_tokens_per_s": rate(events.by_second) * tokens_per_event,
                "requests_per_s": rate(requests.by_second),
                "failed_per_s": rate(requests.failed_by_second),
                "goodput_per_s": rate(goodput.by_second) - rate(goodput.failed_by_second),
            }
        )
    return series


def typical(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The request with the median time of those kept, for each kind of user."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        by_kind.setdefault(sample["kind"], []).append(sample)
    return [_median(by_kind[kind]) for kind in sorted(by_kind)]


def _median(samples: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    ordered = sorted(samples, key=lambda sample: float(sample["e2e_ms"]))
    return ordered[(len(ordered) - 1) // 2]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
