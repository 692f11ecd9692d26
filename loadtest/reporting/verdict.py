"""Limits of a run, each with its figure and its verdict. A limit without a figure is not kept."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# `ttft_p99_ms = 2000`, over all kinds of users together.
_PERCENTILE = re.compile(r"(ttft|itl|e2e|late|lag)_(p50|p90|p95|p99)_ms")
_TIMES = "ttft|itl|e2e|late|lag _ p50|p90|p95|p99 _ms"
_AT_MOST = ("failed_share",)
_AT_LEAST = ("goodput_share", "goodput_per_s", "output_tokens_per_s", "requests_per_s")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One limit. `actual` is None when nothing was measured."""

    name: str
    limit: float
    actual: float | None
    is_upper: bool

    @property
    def is_kept(self) -> bool:
        if self.actual is None:
            return False
        return self.actual <= self.limit if self.is_upper else self.actual >= self.limit


def parse_limit(name: str) -> tuple[tuple[str, ...], bool]:
    """The place of a limit's figure in a summary of all kinds, and True for an upper limit.

    Raises ValueError for an unknown name.
    """
    if name in _AT_MOST or name in _AT_LEAST:
        return (name,), name in _AT_MOST
    if found := _PERCENTILE.fullmatch(name):
        return (f"{found[1]}_ms", found[2]), True
    known = ", ".join((*_AT_MOST, *_AT_LEAST))
    raise ValueError(f"[slo] {name}: knows {known}, and {_TIMES}")


def evaluate(slo: Mapping[str, float], summary: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts on `summary`, the row of all kinds together."""
    verdicts = []
    for name, limit in slo.items():
        path, is_upper = parse_limit(name)
        actual: Any = summary
        for key in path:
            actual = actual.get(key) if actual else None
        verdicts.append(Verdict(name, limit, actual, is_upper))
    return verdicts


def as_dict(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "limit": verdict.limit,
        "actual": verdict.actual,
        "is_upper": verdict.is_upper,
        "is_kept": verdict.is_kept,
    }
