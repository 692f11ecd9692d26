"""Open-loop load from a recorded trace: the time, the length and the shared prefix of each request.

Reads the published formats of Mooncake (JSONL, 512-token block hashes), Azure's LLM inference
traces (CSV) and the kv-cache-tester's agent sessions (JSONL, one session a line), also gzipped.
Traces have no text: a block becomes words drawn by its name, so equal blocks are equal text.
"""

import csv
import gzip
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from loadtest.deployment import Deployment
from loadtest.workloads import Writer

MAX_ARRIVALS = 1_000_000
_MOONCAKE_BLOCK_TOKENS = 512
# Mooncake's times are multiples of this; the requests of one are spread over it.
_MOONCAKE_GRID_MS = 3000


class TraceError(Exception):
    """A trace cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. Prompts share text as far as their blocks have the same names."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    blocks: tuple[str, ...] = ()
    block_tokens: int = 0

    def prompt(self, writer: Writer, own_name: str) -> str:
        """`num_prompt_tokens` of text: that of its blocks, then text of its own."""
        pieces, left = [], self.num_prompt_tokens
        for block in self.blocks:
            size = min(self.block_tokens, left)
            pieces.append(writer.text(block, size))
            left -= size
        pieces.append(writer.text(own_name, left))
        return " ".join(piece for piece in pieces if piece)


def read_trace(path: Path, session_gap_s: float, rng: random.Random) -> list[Arrival]:
    """All requests, in order of time, the first at 0. Raises TraceError."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as lines:
            arrivals = sorted(_parse(lines, session_gap_s, rng), key=lambda one: one.at_s)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: not a trace of a known format ({error!r})") from error
    if not arrivals:
        raise TraceError(f"{path}: no requests")
    began_s = arrivals[0].at_s
    return [replace(one, at_s=one.at_s - began_s) for one in arrivals]


def window(
    arrivals: Iterable[Arrival], start_s: float, duration_s: float, speed: float
) -> list[Arrival]:
    """The requests of `duration_s` of the replay, which runs `speed` times as fast."""
    shifted = (replace(one, at_s=(one.at_s - start_s) / speed) for one in arrivals)
    return [one for one in shifted if 0 <= one.at_s < duration_s]


def fit(arrivals: Sequence[Arrival], deployment: Deployment) -> tuple[list[Arrival], str]:
    """All lengths divided by one number, so that the longest request fits: proportions and shared
    prefixes stay. Also returns a sentence about it, empty when nothing was cut."""
    room = deployment.room(num_messages=1)
    longest = max((one.num_prompt_tokens + one.num_output_tokens for one in arrivals), default=0)
    if longest <= room:
        return list(arrivals), ""
    factor = room / longest
    cut = [
        replace(
            one,
            num_prompt_tokens=max(int(one.num_prompt_tokens * factor), 1),
            num_output_tokens=max(int(one.num_output_tokens * factor), 1),
            block_tokens=max(int(one.block_tokens * factor), 1),
        )
        for one in arrivals
    ]
    note = (
        f"trace: its longest request has {longest:,} tokens, the model room for {room:,}; "
        f"all lengths are divided by {1 / factor:.1f}"
    )
    return cut, note


def _parse(lines: Iterable[str], session_gap_s: float, rng: random.Random) -> Iterator[Arrival]:
    first, rest = _peek(lines)
    if first.startswith("TIMESTAMP,"):
        found = _azure(rest)
    elif "requests" in json.loads(first):
        found = _sessions(rest, session_gap_s, rng)
    else:
        found = _mooncake(rest, rng)
    return itertools.islice(found, MAX_ARRIVALS)


def _peek(lines: Iterable[str]) -> tuple[str, Iterator[str]]:
    iterator = iter(lines)
    first = next(iterator, "{}")
    return first, itertools.chain([first], iterator)


def _azure(lines: Iterable[str]) -> Iterator[Arrival]:
    for row in csv.DictReader(lines):
        # Seven digits after the second's point, one more than Python reads.
        at = datetime.fromisoformat(row["TIMESTAMP"][:26])
        yield Arrival(
            at.timestamp(), int(row["ContextTokens"]), max(int(row["GeneratedTokens"]), 1)
        )


def _mooncake(lines: Iterable[str], rng: random.Random) -> Iterator[Arrival]:
    rows = [json.loads(line) for line in itertools.islice(lines, MAX_ARRIVALS)]
    on_grid = all(row["timestamp"] % _MOONCAKE_GRID_MS == 0 for row in rows)
    for row in rows:
        spread_ms = rng.uniform(0, _MOONCAKE_GRID_MS) if on_grid else 0.0
        yield Arrival(
            (row["timestamp"] + spread_ms) / 1000,
            int(row["input_length"]),
            max(int(row["output_length"]), 1),
            tuple(f"block/{number}" for number in row.get("hash_ids", ())),
            _MOONCAKE_BLOCK_TOKENS,
        )


def _sessions(lines: Iterable[str], session_gap_s: float, rng: random.Random) -> Iterator[Arrival]:
    begins_s = 0.0
    for line in lines:
        session = json.loads(line)
        for at_s, request in _flat(session["requests"], begins_s):
            yield Arrival(
                at_s,
                int(request["in"]),
                max(int(request["out"]), 1),
                tuple(f"{session['id']}/{number}" for number in request.get("hash_ids", ())),
                int(session["block_size"]),
            )
        begins_s += rng.expovariate(1 / session_gap_s)


def _flat(requests: Iterable[dict[str, Any]], begins_s: float) -> Iterator[tuple[float, Any]]:
    """The requests of a session in one list; a sub-agent's times count from its own start."""
    for request in requests:
        at_s = begins_s + request["t"]
        if request["type"] == "subagent":
            yield from _flat(request["requests"], at_s)
        else:
            yield at_s, request
