"""`baton usage`: what tenants used, from the usage archive, and whether it adds up.

Without `--tenant` three more lines say what the workers did besides: `idle`; `unbilled`, which the
workers know to be on no bill; and `difference`, which is what is missing of it or too much. All
lines together are the workers' uptime.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from baton.cli.usage_sums import (
    GROUPS,
    FleetTime,
    Period,
    Row,
    UnreadableArchive,
    sum_usage,
    sum_workers,
)
from baton.localstack.home import Home
from baton.localstack.refusal import Refusal

FORMATS = ("table", "csv", "json", "parquet")
# The share of the uptime by which records and workers may differ.
TOLERANCE = 0.01


class UsageRefused(Refusal):
    """The command cannot do what it was asked to; the message says why."""


def add_parsers(commands: Any) -> None:
    usage = commands.add_parser("usage", help="what tenants used, from the usage archive")
    usage.add_argument(
        "--archive",
        action="append",
        type=Path,
        metavar="FOLDER",
        help="of a quota service; several times for several replicas (default: of this stack)",
    )
    usage.add_argument("--tenant", metavar="T", help="of this tenant alone")
    usage.add_argument("--since", type=_day, metavar="DAY", help="YYYY-MM-DD, UTC")
    usage.add_argument("--until", type=_day, metavar="DAY", help="YYYY-MM-DD, included")
    usage.add_argument(
        "--group-by", type=_groups, default=("tenant",), metavar="A,B", help=",".join(GROUPS)
    )
    usage.add_argument("--format", choices=FORMATS, default="table")
    usage.add_argument("--output", type=Path, metavar="FILE", help="instead of standard output")
    usage.add_argument(
        "--check", action="store_true", help="fail unless it adds up to the workers' uptime"
    )
    usage.set_defaults(run=_run)


def bill(
    folders: Sequence[Path], period: Period, group_by: Sequence[str], tenant: str | None = None
) -> tuple[list[Row], FleetTime]:
    """The lines of a bill, and the time of the workers in all. Raises UsageRefused."""
    try:
        rows = sum_usage(folders, period, group_by, tenant)
        of_day = sum_workers(folders, period)
    except (UnreadableArchive, OSError) as error:
        raise UsageRefused(str(error)) from None
    for row in rows:
        row["line"] = "usage"
        row["engine_us"] = _time_of(row)
    fleet = _sum(list(of_day.values()))
    if tenant is None:
        if "day" in group_by:
            for day, time in of_day.items():
                same_day = [row for row in rows if row["day"] == str(day)]
                rows += _lines_of(time, same_day, {"day": str(day)})
        elif of_day:
            rows += _lines_of(fleet, rows, {})
    columns = _columns(group_by)
    return [{name: row.get(name, _empty(name)) for name in columns} for row in rows], fleet


def difference_us(rows: Sequence[Row]) -> int:
    """By how much workers have told more than the records have, over all days."""
    return sum(int(row["engine_us"]) for row in rows if row["line"] == "difference")


def _run(arguments: argparse.Namespace) -> int:
    folders = arguments.archive or [Home.of_environment().usage]
    for folder in folders:
        if not folder.is_dir():
            raise UsageRefused(f"{folder}: not a folder; say --archive FOLDER")
    if arguments.check and arguments.tenant is not None:
        raise UsageRefused("--check needs all tenants: leave out --tenant")
    period = Period(arguments.since, arguments.until)
    rows, fleet = bill(folders, period, arguments.group_by, arguments.tenant)
    _write(_encode(rows, _columns(arguments.group_by), arguments.format), arguments.output)
    return _check(rows, fleet) if arguments.check else 0


def _check(rows: Sequence[Row], fleet: FleetTime) -> int:
    """Say whether it adds up; returns the exit status."""
    if not fleet.uptime_us:
        raise UsageRefused("the archive has no line of a worker in this time")
    share = difference_us(rows) / fleet.uptime_us
    verdict = "adds up" if abs(share) <= TOLERANCE else "DOES NOT ADD UP"
    uptime_s = fleet.uptime_us / 1e6
    print(f"{verdict}: {share:.2%} of {uptime_s:.0f} s of uptime differ", file=sys.stderr)
    return 0 if abs(share) <= TOLERANCE else 1


def _lines_of(time: FleetTime, rows: Sequence[Row], group: Row) -> list[Row]:
    """What the workers did beside the usage in these rows."""
    billed_us = sum(int(row["engine_us"]) for row in rows if row["line"] == "usage")
    known_us = time.busy_us - time.unbilled_us
    return [
        {**group, "line": "idle", "engine_us": time.uptime_us - time.busy_us},
        {**group, "line": "unbilled", "engine_us": time.unbilled_us},
        {**group, "line": "difference", "engine_us": known_us - billed_us},
    ]


def _sum(times: Sequence[FleetTime]) -> FleetTime:
    return FleetTime(
        sum(time.uptime_us for time in times),
        sum(time.busy_us for time in times),
        sum(time.unbilled_us for time in times),
    )


def _time_of(row: Row) -> int:
    return int(row["prefill_us"]) + int(row["decode_us"])


def _columns(group_by: Sequence[str]) -> tuple[str, ...]:
    return (
        *("line", *group_by, "requests", "prompt_tokens", "cached_tokens", "output_tokens"),
        *("engine_us", "prefill_us", "decode_us"),
        *("cancelled_us", "migrated_us", "preempted_us", "kv_gib_s", "cost"),
    )


def _empty(column: str) -> str | int | float:
    return "" if column in GROUPS else 0


def _encode(rows: Sequence[Row], columns: Sequence[str], form: str) -> bytes:
    match form:
        case "csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return text.getvalue().encode()
        case "json":
            return json.dumps(rows, indent=1).encode() + b"\n"
        case "parquet":
            return _parquet(rows, columns)
        case _:
            return _table(rows, columns).encode()


def _parquet(rows: Sequence[Row], columns: Sequence[str]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageRefused("--format parquet needs pyarrow: pip install pyarrow") from None
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({name: [row[name] for row in rows] for name in columns})
    parquet.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Aligned columns, with seconds instead of microseconds."""
    cells = [[name.replace("_us", "_s") for name in columns]]
    cells += [[_cell(name, row[name]) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    texts = {"line", *GROUPS}
    lines = [
        "  ".join(
            cell.ljust(width) if name in texts else cell.rjust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines) + "\n"


def _cell(column: str, value: str | float) -> str:
    if column.endswith("_us"):
        return f"{float(value) / 1e6:.3f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _write(data: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UsageRefused(str(error)) from None


def _day(text: str) -> date:
    return date.fromisoformat(text)


def _groups(text: str) -> tuple[str, ...]:
    groups = tuple(name for name in text.split(",") if name)
    unknown = set(groups) - set(GROUPS)
    if unknown or len(set(groups)) < len(groups):
        raise argparse.ArgumentTypeError(f"say each of {','.join(GROUPS)} at most once")
    return groups
