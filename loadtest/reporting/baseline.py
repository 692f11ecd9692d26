"""A run beside an earlier one: which figures became worse by more than the tolerance.

Shares are compared by their difference, times and rates by their ratio. A figure that one of the
two runs does not have is not compared.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.reporting.verdict import parse_limit

# As limits of a scenario are called. The 99th percentile of first tokens is left out: two runs of
# the same server differ by more than any useful tolerance.
FIGURES = (
    "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms", "requests_per_s",
    "output_tokens_per_s", "goodput_per_s", "goodput_share", "failed_share",
)  # fmt: skip
_SAME = ("scenario", "model", "load")


class BaselineError(Exception):
    """The earlier report cannot be compared with; the message says why."""


def read(path: Path) -> dict[str, Any]:
    """An earlier report.json. Raises BaselineError."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BaselineError(f"baseline {path}: {error}") from error
    if not isinstance(found, dict) or "all" not in found or "scenario" not in found:
        raise BaselineError(f"baseline {path}: not a report.json of a load test")
    return found


def compare(
    before: Mapping[str, Any], now: Mapping[str, Any], tolerance: float
) -> list[dict[str, Any]]:
    """A row for each figure that both runs have."""
    rows = []
    for name in FIGURES:
        path, is_upper = parse_limit(name)
        old, new = (_at(run["all"], path) for run in (before, now))
        if old is None or new is None or not (old or name.endswith("_share")):
            continue
        change = new - old if name.endswith("_share") else new / old - 1
        loss = change if is_upper else -change
        row = {"name": name, "before": old, "now": new, "change": change}
        rows.append({**row, "is_worse": loss > tolerance})
    return rows


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In what the two runs were not the same, in words."""
    return [
        f"the baseline had another {key}: {before.get(key)}"
        for key in _SAME
        if before.get(key) != now.get(key)
    ]


def _at(row: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    found: Any = row
    for key in path:
        found = found.get(key) if found else None
    return found
