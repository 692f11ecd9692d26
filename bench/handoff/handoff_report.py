"""The records of `handoff.py` as a table: rates, and what they are of the best that is possible."""

import statistics
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

_BASELINES = {
    "memory copy": "memory_copy_s",
    "socket": "socket_s",
    "bare gRPC stream": "grpc_stream_s",
}
# What each transport is measured against, and the least share of it that is aimed at.
_AIMS = {
    "shm": ("memory copy", ">= 0.70"),
    "nixl": ("memory copy", "-"),
    "grpc": ("bare gRPC stream", ">= 0.80"),
}
_EXPOSED_AIM = "<= 0.15"
_OVERLAP_AIM = "<= 0.20"
_OVERLAP_HEAD = (
    *("behind a real prefill", "tokens", "MiB", "prefill ms", "idle transfer ms"),
    *("exposed ms", "exposed", "aim"),
)
_HEAD = ("", "GB/s, best", "GB/s, median", "share of", "best", "median", "aim", "exposed", "aim")


def render(records: Sequence[Record]) -> str:
    """Conditions and a table; of a transport that was measured twice the last run counts."""
    environment = [record for record in records if record["part"] == "environment"]
    measured = list({r["contender"]: r for r in records if r["part"] == "handoff"}.values())
    rows = [_baseline(name, measured) for name in _BASELINES if measured]
    rows += [_transport(record) for record in measured]
    table = [_HEAD, ("---",) * len(_HEAD), *rows]
    lines = [_conditions(record) + "\n" for record in environment[-1:]]
    overlaps = [_overlap(record) for record in records if record["part"] == "overlap"]
    if overlaps:
        overlaps = [_OVERLAP_HEAD, ("---",) * len(_OVERLAP_HEAD), *overlaps]
    return "\n".join([*lines, *_rows(table), *([""] if overlaps else []), *_rows(overlaps)]) + "\n"


def _rows(table: Sequence[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in table]


def _conditions(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"{record['num_bytes'] / 2**20:.0f} MiB per transfer in pages of "
        f"{record['page_bytes'] // 1024} KiB; the exposed part while a prefill of "
        f"{record['num_chunks']} steps takes {record['prefill_factor']:g} times an idle transfer. "
        f"{record['cpu']}, {record['num_cpus']} CPUs; Python {record['python']}, {versions}."
    )


def _rates(num_bytes: int, seconds: Sequence[float]) -> tuple[str, str]:
    best, median = min(seconds), statistics.median(seconds)
    return f"{num_bytes / best / 1e9:.2f}", f"{num_bytes / median / 1e9:.2f}"


def _baseline(name: str, measured: Sequence[Record]) -> tuple[str, ...]:
    """The baseline of the rounds of all transports."""
    seconds = [each for record in measured for each in record[_BASELINES[name]]]
    return (name, *_rates(measured[0]["num_bytes"], seconds), *["-"] * 6)


def _transport(record: Record) -> tuple[str, ...]:
    name, seconds = record["contender"], record["transfer_s"]
    base, aim = _AIMS[name]
    base_s = record[_BASELINES[base]]
    shares = [theirs / ours for theirs, ours in zip(base_s, seconds, strict=True)]
    exposed = [late / all_ for late, all_ in zip(record["exposed_s"], seconds, strict=True)]
    return (
        f"**{name}**",
        *_rates(record["num_bytes"], seconds),
        base,
        f"{min(base_s) / min(seconds):.2f}",
        f"{statistics.median(shares):.2f}",
        aim,
        f"{statistics.median(exposed):.2f}",
        _EXPOSED_AIM,
    )


def _overlap(record: Record) -> tuple[str, ...]:
    """One length of a prompt; the exposed part is compared round by round."""
    exposed_s, idle_s = record["exposed_s"], record["idle_s"]
    shares = [late / idle for late, idle in zip(exposed_s, idle_s, strict=True)]
    medians = [statistics.median(record[part]) for part in ("prefill_s", "idle_s", "exposed_s")]
    return (
        f"**{record['contender']}**",
        str(record["num_tokens"]),
        f"{record['num_bytes'] / 2**20:.0f}",
        *(f"{median * 1000:.1f}" for median in medians),
        f"{statistics.median(shares):.2f}",
        _OVERLAP_AIM,
    )
