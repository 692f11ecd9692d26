"""Adds up the usage archive: bills by tenant, key, model and day, and the time of the workers.

The archive may be larger than memory: lines go through a database in a temporary file, in which a
request has one row, however often it was written. A request belongs to the day on which it was
settled. The days before and after the wanted ones are read as well: a request's final line, and a
worker's nearest one, may be there.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from baton.wire import usage_log, worker_log
from baton.wire.usage_log import UsageLine
from baton.wire.worker_log import WorkerLine

GROUPS = ("tenant", "key", "model", "day")
Row = dict[str, str | int | float]

_DAY = timedelta(days=1)
_TEXTS = ("tenant", "key", "model", "day")
_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "prefill_us", "decode_us")
_CAUSES = ("cancelled", "migrated", "preempted")
_NUMBERS = (*_COUNTS, *(f"{cause}_us" for cause in _CAUSES))
_GIB_MS = 2**30 * 1000
_BILLION = 10**9
_CACHE_KIB = 64 * 1024
_TABLE = f"""CREATE TABLE lines (
    request TEXT PRIMARY KEY, provisional INTEGER, {", ".join(_TEXTS)},
    {", ".join(_NUMBERS)}, kv_gib_s REAL, cost INTEGER) WITHOUT ROWID"""
_COLUMNS = ("provisional", *_TEXTS, *_NUMBERS, "kv_gib_s", "cost")
_UPSERT = f"""INSERT INTO lines VALUES (?, {", ".join("?" * len(_COLUMNS))})
    ON CONFLICT (request) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _COLUMNS)}
    WHERE lines.provisional"""


class UnreadableArchive(Exception):
    """A file of the archive cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Period:
    """Days of UTC, both included; None = from the first, to the last."""

    since: date | None = None
    until: date | None = None

    def has(self, day: date) -> bool:
        return (self.since is None or self.since <= day) and (
            self.until is None or day <= self.until
        )

    def is_near(self, day: date) -> bool:
        """It, the day before or the day after is one of these days."""
        return self.has(day) or self.has(day - _DAY) or self.has(day + _DAY)


@dataclass(slots=True)
class FleetTime:
    """The time of all workers on one day, in microseconds."""

    uptime_us: int = 0
    busy_us: int = 0
    unbilled_us: int = 0


def sum_usage(
    folders: Iterable[Path], period: Period, group_by: Sequence[str], tenant: str | None = None
) -> list[Row]:
    """The rows of a bill, in the order of their groups. Raises UnreadableArchive, OSError."""
    with closing(sqlite3.connect("")) as database:
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        database.execute(_TABLE)
        for folder in folders:
            for path in usage_log.files(folder):
                if period.is_near(_day_of(path)):
                    database.executemany(_UPSERT, _values(path, tenant))
        sums = [f"SUM({name})" for name in (*_NUMBERS, "kv_gib_s")]
        sums.append(f"SUM(cost) * 1.0 / {_BILLION}")
        query = f"SELECT {', '.join([*group_by, 'COUNT(*)', *sums])} FROM lines"
        query += " WHERE day BETWEEN ? AND ?"
        if group_by:
            query += f" GROUP BY {', '.join(group_by)} ORDER BY {', '.join(group_by)}"
        days = (str(period.since or date.min), str(period.until or date.max))
        names = (*group_by, "requests", *_NUMBERS, "kv_gib_s", "cost")
        rows = [dict(zip(names, row, strict=True)) for row in database.execute(query, days)]
    return [row for row in rows if row["requests"]]


def sum_workers(folders: Iterable[Path], period: Period) -> dict[date, FleetTime]:
    """What the workers did on each day. Raises OSError."""
    lives: dict[tuple[str, int], _Life] = {}
    for folder in folders:
        for path in worker_log.files(folder):
            if period.is_near(_day_of(path)):
                for line in worker_log.read_file(path):
                    lives.setdefault((line.worker_id, line.boot_epoch), _Life()).add(line)
    of_day: dict[date, FleetTime] = {}
    for life in lives.values():
        for day, spent in life.days():
            if period.has(day):
                total = of_day.setdefault(day, FleetTime())
                total.uptime_us += spent.uptime_us
                total.busy_us += spent.busy_us
                total.unbilled_us += spent.unbilled_us
    return dict(sorted(of_day.items()))


@dataclass(slots=True)
class _Life:
    """One life of a worker: the first and the last line of each day."""

    lines: dict[date, tuple[WorkerLine, WorkerLine]] = field(default_factory=dict)

    def add(self, line: WorkerLine) -> None:
        day = datetime.fromtimestamp(line.at_unix_ms / 1000, UTC).date()
        first, last = self.lines.get(day, (line, line))
        # Archives of several replicas are read one after the other.
        self.lines[day] = min(first, line, key=_time_of), max(last, line, key=_time_of)

    def days(self) -> Iterator[tuple[date, FleetTime]]:
        """What it did on each day, from its start on. Between two lines it did all evenly."""
        lines = sorted((each for pair in self.lines.values() for each in pair), key=_time_of)
        born_ms = lines[0].at_unix_ms - lines[0].uptime_us // 1000
        points = [(born_ms, (0, 0, 0)), *((line.at_unix_ms, _sums(line)) for line in lines)]
        day = datetime.fromtimestamp(born_ms / 1000, UTC).date()
        before: tuple[int, ...] = (0, 0, 0)
        while day <= max(self.lines):
            day += _DAY
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            after = _value_at(points, int(midnight.timestamp() * 1000))
            uptime_us, busy_us, unbilled_us = map(int.__sub__, after, before)
            yield day - _DAY, FleetTime(uptime_us, busy_us, unbilled_us)
            before = after


def _value_at(points: Sequence[tuple[int, tuple[int, ...]]], at_ms: int) -> tuple[int, ...]:
    """The sums at a moment, from those before and after it."""
    before_ms, before = points[0]
    for after_ms, after in points:
        if after_ms > at_ms:
            span_ms = after_ms - before_ms
            return tuple(
                low + (high - low) * (at_ms - before_ms) // span_ms
                for low, high in zip(before, after, strict=True)
            )
        before_ms, before = after_ms, after
    return before


def _sums(line: WorkerLine) -> tuple[int, int, int]:
    return line.uptime_us, line.busy_us, line.unbilled_us


def _time_of(line: WorkerLine) -> tuple[int, int]:
    return line.at_unix_ms, line.uptime_us


def _day_of(path: Path) -> date:
    """The day in a file's name. Raises UnreadableArchive."""
    try:
        return date.fromisoformat(path.stem.partition("-")[2])
    except ValueError:
        raise UnreadableArchive(f"{path}: its name has no day") from None


def _values(path: Path, tenant: str | None) -> Iterator[tuple[str | int | float, ...]]:
    """The table's rows of one file. Raises UnreadableArchive."""
    day = str(_day_of(path))
    try:
        for line in usage_log.read_file(path):
            if tenant is None or line.tenant == tenant:
                yield _row_of(line, day)
    except msgspec.MsgspecError as error:
        raise UnreadableArchive(f"{path}: {error}") from None


def _row_of(line: UsageLine, day: str) -> tuple[str | int | float, ...]:
    return (
        f"{line.tenant}\n{line.request_id}",
        int(line.provisional),
        line.tenant,
        line.key_id,
        line.model,
        day,
        line.num_prompt_tokens,
        line.num_cached_tokens,
        line.num_output_tokens,
        line.prefill_us,
        line.decode_us,
        *(line.wasted_us.get(cause, 0) for cause in _CAUSES),
        line.kv_byte_ms / _GIB_MS,
        line.cost,
    )
