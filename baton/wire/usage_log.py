"""The usage archive: daily files of JSON lines, one per finished request. Shared because the quota
service writes the files that the command line and an operator's billing read.

Files are named `usage-YYYY-MM-DD.jsonl` after the UTC day of the settling. A line with
`"provisional": true` belongs to a request whose gateway was lost; a later line about the same
request replaces it. A request is (tenant, request_id): equal ids of two tenants are different
requests. An id that came with the request is followed by a dot and 16 digits, since it may come
again.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from baton.wire.v1 import failure_pb2, quota_pb2


class UsageLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished request, a field for each key of its line. `stages_us` adds up to `wall_us`.

    `prefill_us` and `decode_us` are the time of engines; `wasted_us` has parts of them by cause.
    """

    tenant: str
    request_id: str
    key_id: str
    model: str
    settled_unix_ms: int
    num_prompt_tokens: int
    num_output_tokens: int
    finish_reason: str
    num_cached_tokens: int = 0
    num_wasted_tokens: int = 0
    num_attempts: int = 1
    started_unix_ms: int = 0
    wall_us: int = 0
    stages_us: dict[str, int] = {}
    endpoint: str = ""
    model_fp: str = ""
    provisional: bool = False
    # Billionths of the currency of the price list with this version.
    cost: int = 0
    price_version: str = ""
    prefill_us: int = 0
    decode_us: int = 0
    kv_byte_ms: int = 0
    wasted_us: dict[str, int] = {}

    @property
    def num_tokens(self) -> int:
        """The tokens that the request is charged for."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def file_name(self) -> str:
        day = datetime.fromtimestamp(self.settled_unix_ms / 1000, UTC).date()
        return f"usage-{day.isoformat()}.jsonl"


_decode = msgspec.json.Decoder(UsageLine).decode


def from_record(record: quota_pb2.UsageRecord, settled_unix_ms: int) -> UsageLine:
    """Make the line of a settled record."""
    return UsageLine(
        tenant=record.tenant,
        request_id=record.request_id,
        key_id=record.key_id,
        model=record.model,
        settled_unix_ms=settled_unix_ms,
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=record.num_output_tokens,
        finish_reason=record.finish_reason,
        num_cached_tokens=record.num_cached_tokens,
        num_wasted_tokens=record.num_wasted_tokens,
        num_attempts=record.num_attempts,
        started_unix_ms=record.started_unix_ms,
        wall_us=record.wall_us,
        stages_us={stage.name: stage.duration_us for stage in record.stages},
        endpoint=record.endpoint,
        model_fp=record.model_fp,
        provisional=record.provisional,
        prefill_us=record.engine.prefill_us,
        decode_us=record.engine.decode_us,
        kv_byte_ms=record.engine.kv_byte_ms,
        wasted_us=_wasted_us(record.engine),
    )


def _wasted_us(engine: failure_pb2.EngineTime) -> dict[str, int]:
    by_cause = {
        "cancelled": engine.cancelled_us,
        "migrated": engine.migrated_us,
        "preempted": engine.preempted_us,
    }
    return {cause: wasted_us for cause, wasted_us in by_cause.items() if wasted_us}


def encode(line: UsageLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_file(path: Path, max_bytes: int | None = None) -> Iterator[UsageLine]:
    """Read the lines of one file, in order, one at a time; with `max_bytes`, those of its end.

    A torn last line (the machine died while it was written) is left out: its entry was not
    acknowledged and is written again. Raises msgspec.MsgspecError.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        start = 0 if max_bytes is None else max(0, path.stat().st_size - max_bytes)
        if start:
            # The line that holds the byte before `start` began earlier: the next one is whole.
            file.seek(start - 1)
            file.readline()
        for line in file:
            if line.endswith(b"\n") and line != b"\n":
                yield _decode(line)


def files(folder: Path) -> list[Path]:
    """The daily files of an archive, oldest first."""
    return sorted(folder.glob("usage-????-??-??.jsonl"))


def final_lines(lines: Iterable[UsageLine]) -> list[UsageLine]:
    """Choose one line per request: the final one if there is one, else the last provisional one."""
    latest: dict[tuple[str, str], UsageLine] = {}
    for line in lines:
        request = (line.tenant, line.request_id)
        known = latest.get(request)
        if known is None or known.provisional:
            latest[request] = line
    return list(latest.values())
