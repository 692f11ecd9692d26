"""The workers' time in the usage archive: daily files of JSON lines, one a minute for each worker.

Files are named `workers-YYYY-MM-DD.jsonl` after the UTC day on which quota heard of it. A line has
sums since the start of the worker's life, so what a lost line said is in the next one, and a line
may come several times. Shared because quota writes them and the command line reads them.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from baton.wire.v1 import quota_pb2, router_pb2


class WorkerLine(msgspec.Struct, frozen=True):
    """One worker at one moment. `unbilled_us` is a part of `busy_us`, and that of `uptime_us`."""

    worker_id: str
    boot_epoch: int
    role: str
    model: str
    at_unix_ms: int
    uptime_us: int
    busy_us: int
    unbilled_us: int

    @property
    def file_name(self) -> str:
        day = datetime.fromtimestamp(self.at_unix_ms / 1000, UTC).date()
        return f"workers-{day.isoformat()}.jsonl"


_ROLES = {router_pb2.WORKER_ROLE_PREFILL: "prefill", router_pb2.WORKER_ROLE_DECODE: "decode"}
_decode = msgspec.json.Decoder(WorkerLine).decode


def from_totals(worker: quota_pb2.WorkerTotals, at_unix_ms: int) -> WorkerLine:
    """Make the line of what a gateway tells; figures that contradict each other are clamped."""
    totals = worker.totals
    busy_us = min(totals.busy_us, totals.uptime_us)
    return WorkerLine(
        worker_id=worker.worker_id,
        boot_epoch=totals.boot_epoch,
        role=_ROLES.get(worker.role, ""),
        model=worker.model,
        at_unix_ms=at_unix_ms,
        uptime_us=totals.uptime_us,
        busy_us=busy_us,
        unbilled_us=min(totals.unbilled_us, busy_us),
    )


def encode(line: WorkerLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_file(path: Path) -> Iterator[WorkerLine]:
    """Read the lines of one file, one at a time; lines that a crash tore are left out."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield _decode(line)
            except msgspec.DecodeError:
                continue


def files(folder: Path) -> list[Path]:
    """The daily files of an archive, oldest first."""
    return sorted(folder.glob("workers-????-??-??.jsonl"))
