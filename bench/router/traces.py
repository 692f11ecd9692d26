"""Traffic for the router: recorded traces read from a folder, and synthetic ones of the same kind.

A prompt is a length and the hashes of its full blocks. No trace has any text. Recorded formats are
Mooncake's, Azure's and the agent sessions of kv-cache-tester (docs/benchmarks/router.md).
"""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from baton.wire.prefix_hash import HASH_BYTES

BLOCK_SIZE = 512
# Mooncake's clock ticks once in 3 s; its requests are spread over the tick.
_MOONCAKE_TICK_S = 3.0
# Agent sessions carry no time of their own: they begin as a Poisson process of this mean gap.
SESSION_GAP_S = 10.0
# A synthetic chat goes on at least so long after its last question.
_THINK_S = 15.0
# Longer requests are left out: half of what one simulated worker holds.
MAX_TOKENS = 1024 * BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: its time, its lengths in tokens, the hashes of its prompt's full blocks."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times."""

    name: str
    arrivals: Sequence[Arrival]

    @property
    def duration_s(self) -> float:
        return self.arrivals[-1].at_s

    @property
    def num_prompt_tokens(self) -> int:
        return sum(each.num_prompt_tokens for each in self.arrivals)


def load_traces(folder: Path, random: Random, duration_s: float) -> list[Trace]:
    """Read the beginnings of all traces that lie in the folder, in a fixed order."""
    readers = (
        ("conversation", "mooncake_conversation*.jsonl", read_mooncake),
        ("agents", "weka_agentic*.jsonl.gz", read_agent_sessions),
        ("azure code", "azure*code*.csv", read_azure),
        ("azure chat", "azure*conv*.csv", read_azure),
    )
    return [
        trace(name, read(path, random), duration_s)
        for name, pattern, read in readers
        for path in sorted(folder.glob(pattern))[:1]
    ]


def trace(name: str, arrivals: Iterable[Arrival], duration_s: float) -> Trace:
    """Order the arrivals of the first `duration_s`, let them begin at 0, and leave out requests of
    more than MAX_TOKENS."""
    short = (a for a in arrivals if a.num_prompt_tokens + a.num_output_tokens <= MAX_TOKENS)
    ordered = sorted(short, key=lambda each: each.at_s)
    start_s = ordered[0].at_s
    from_0 = (replace(each, at_s=each.at_s - start_s) for each in ordered)
    return Trace(name, [each for each in from_0 if each.at_s <= duration_s])


def read_mooncake(path: Path, random: Random) -> Iterator[Arrival]:
    """Read a Mooncake trace. Equal ids are equal blocks behind equal prefixes."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        num_full = row["input_length"] // BLOCK_SIZE
        yield Arrival(
            row["timestamp"] / 1000 + random.uniform(0, _MOONCAKE_TICK_S),
            row["input_length"],
            row["output_length"],
            tuple(_hash(number) for number in row["hash_ids"][:num_full]),
        )


def read_azure(path: Path, random: Random) -> Iterator[Arrival]:
    """Read an Azure trace, whose prompts share nothing."""
    with path.open() as file:
        for row in csv.DictReader(file):
            # Seven digits of a second are one more than Python reads.
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            num_tokens = int(row["ContextTokens"])
            hashes = _new_hashes(num_tokens // BLOCK_SIZE, random)
            yield Arrival(at_s, num_tokens, int(row["GeneratedTokens"]), hashes)


def read_agent_sessions(path: Path, random: Random) -> Iterator[Arrival]:
    """Read agent sessions; each begins at a random time and keeps its own pace."""
    start_s = 0.0
    with gzip.open(path, "rt") as file:
        for line in file:
            session = json.loads(line)
            per_block = BLOCK_SIZE // session["block_size"]
            yield from _session(session["id"].encode(), session["requests"], start_s, per_block)
            start_s += random.expovariate(1 / SESSION_GAP_S)


def _session(
    name: bytes, requests: list[dict[str, Any]], start_s: float, per_block: int
) -> Iterator[Arrival]:
    for request in requests:
        at_s = start_s + request["t"]
        if request["type"] == "subagent":
            yield from _session(name, request["requests"], at_s, per_block)
        elif request["in"] > 0:
            num_full = request["in"] // BLOCK_SIZE
            hashes = tuple(_chain(name, request["hash_ids"], per_block))[:num_full]
            yield Arrival(at_s, request["in"], max(1, request["out"]), hashes)


def _chain(root: bytes, ids: list[int], per_block: int) -> Iterator[bytes]:
    """Join the trace's small blocks to ours, each hash over everything before it."""
    parent = root
    for start in range(0, len(ids) - per_block + 1, per_block):
        text = ",".join(map(str, ids[start : start + per_block])).encode()
        parent = blake2b(parent + text, digest_size=HASH_BYTES).digest()
        yield parent


def synthetic_traces(random: Random, duration_s: float) -> list[Trace]:
    """Make traces with the statistics of the recorded ones, for machines that have none."""
    return [
        trace("synthetic chats", synthetic_chats(random, duration_s), duration_s),
        trace("synthetic bursts", synthetic_bursts(random, duration_s), duration_s),
    ]


def synthetic_chats(
    random: Random, duration_s: float, per_s: float = 3.2, num_common: int = 1
) -> Iterator[Arrival]:
    """Yield chats with a common system prompt of `num_common` blocks: half of all requests go on
    with one of the last 400 chats, the rest begin a new one; lengths are log-normal."""
    common = _new_hashes(num_common, random)
    chats: list[tuple[float, tuple[bytes, ...]]] = []
    at_s = 0.0
    while (at_s := at_s + random.expovariate(per_s)) < duration_s:
        num_new = max(1, int(random.lognormvariate(8.2, 1.2)))
        num_answered = sum(asked_s < at_s - _THINK_S for asked_s, _ in chats)
        before = common
        if num_answered and random.random() < 0.5:
            _, before = chats.pop(random.randrange(num_answered))
        num_tokens = min(len(before) * BLOCK_SIZE + num_new, 120_000)
        hashes = before + _new_hashes(num_tokens // BLOCK_SIZE - len(before), random)
        num_output = min(2000, max(1, int(random.lognormvariate(5.5, 0.9))))
        yield Arrival(at_s, num_tokens, num_output, hashes)
        chats = [*chats[-399:], (at_s, hashes)]


def synthetic_bursts(random: Random, duration_s: float) -> Iterator[Arrival]:
    """Yield unrelated prompts, a tenth of the time ten times as many as else."""
    at_s = 0.0
    while (at_s := at_s + random.expovariate(20.0 if at_s % 60 < 6 else 2.0)) < duration_s:
        num_tokens = min(7_437, max(1, int(random.lognormvariate(7.3, 0.9))))
        num_output = max(1, int(random.lognormvariate(2.8, 0.9)))
        yield Arrival(at_s, num_tokens, num_output, _new_hashes(num_tokens // BLOCK_SIZE, random))


def _new_hashes(count: int, random: Random) -> tuple[bytes, ...]:
    return tuple(random.randbytes(HASH_BYTES) for _ in range(count))


def _hash(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "big")
