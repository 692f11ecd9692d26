"""Counts of faults and of what came of them, and the table that a run ends with."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
# Of each kind of fault, unless the counts are the long ones.
NUM_EACH = int(os.environ.get("BATON_CHAOS_EACH", "1"))
# Of one trial, on average.
MAX_TRIES = 4
# Fewer trials say nothing of a 95th percentile.
NUM_FOR_P95 = 50
# The limit of one trial where the page promises a 95th percentile of 2 s: one in twenty may be
# later, and so may one on a busy machine; none that waited for a timeout is as quick.
MAX_TRIAL_S = 10.0


class Missed(Exception):
    """The fault struck nobody: what it was aimed at had ended by itself. Nothing was tried."""


@dataclass
class Kind:
    """All trials of one kind of fault."""

    num_trials: int = 0
    num_missed: int = 0
    failures: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    seconds: float = 0.0


class Trials:
    """By kind; `run` is how tests use it."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}

    def run(
        self,
        kind: str,
        num_long: int,
        trial: Callable[[int], float],
        *,
        num_each: int | None = None,
        max_s: float = MAX_TRIAL_S,
        max_p95_s: float = float("inf"),
    ) -> None:
        """Call `trial` with 0, 1, ... as often as this run asks for; it returns how long a client
        stalled, or what else took its time. `max_p95_s` is for runs with enough trials; `max_s`
        holds for each. A short run makes `num_each` trials, NUM_EACH by default. All failures are
        told at the end. A trial that missed is made again."""
        entry = self.kinds.setdefault(kind, Kind())
        started_s = time.monotonic()
        num_wanted = num_long if IS_LONG else num_each or NUM_EACH
        for number in range(num_wanted * MAX_TRIES):
            if entry.num_trials == num_wanted:
                break
            try:
                pause_s = trial(number)
                entry.pauses_s.append(pause_s)
                assert pause_s <= max_s, f"it took {pause_s:.2f} s, of {max_s} s at most"
            except Missed:
                entry.num_missed += 1
                continue
            except AssertionError as error:
                entry.num_trials += 1
                entry.failures.append(f"trial {number}: {error}")
                if not IS_LONG and NUM_EACH == 1:
                    raise
            else:
                entry.num_trials += 1
        entry.seconds += time.monotonic() - started_s
        assert not entry.failures, "\n".join(entry.failures)
        assert entry.num_trials == num_wanted, f"{entry.num_missed} faults struck nobody"
        if len(entry.pauses_s) >= NUM_FOR_P95:
            assert _percentile(entry.pauses_s, 0.95) <= max_p95_s

    def table(self) -> list[str]:
        counts = f"{'trials':>7}{'missed':>7}{'failed':>7}"
        head = f"{'fault':<44}{counts}{'pause p50':>11}{'p95':>8}{'seconds':>9}"
        rows = [head]
        for name, kind in self.kinds.items():
            p50, p95 = (_shown(kind.pauses_s, share) for share in (0.5, 0.95))
            rows.append(
                f"{name:<44}{kind.num_trials:>7}{kind.num_missed:>7}{len(kind.failures):>7}{p50:>11}{p95:>8}"
                f"{kind.seconds:>9.1f}"
            )
        return rows


def _shown(values: list[float], share: float) -> str:
    return f"{_percentile(values, share):.2f} s" if values else "-"


def _percentile(values: list[float], share: float) -> float:
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
