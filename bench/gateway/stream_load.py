"""A load of the gateway benchmark, as the process that makes it is told (`load_client.py`)."""

from dataclasses import dataclass
from typing import Any

from bench.gateway.pace import AnswerPace
from bench.pressure.paced_stack import MODEL
from bench.workload import WordList

_WARM_S = 1.5


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go, with these headers. `pids`: processes that are watched, by name."""

    url: str
    headers: dict[str, str]
    pids: dict[str, int]


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """Streams of a pace: of `tokens`, `requests` or `idle`. Clients of `requests` begin within
    `spread_s`."""

    kind: str
    num_streams: int
    pace: AnswerPace
    max_tokens: int
    num_prompt: int
    spread_s: float = 0.0


def plan_of(load: StreamLoad, server: Server, words: WordList, seconds: float) -> dict[str, Any]:
    """The plan of a load that counts for so long."""
    message = {"role": "user", "content": words.text("prompt", load.num_prompt)}
    body = {
        "model": MODEL,
        "messages": [message],
        "stream": True,
        "max_tokens": load.max_tokens,
        "seed": load.pace.seed,
    }
    return {
        "kind": load.kind,
        "url": server.url,
        "headers": server.headers,
        "body": body,
        "num_streams": load.num_streams,
        "seconds": seconds,
        "spread_s": load.spread_s,
        "warm_s": _WARM_S,
        "pids": server.pids,
    }
