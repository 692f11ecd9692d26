"""The stages of one request: those of the server, and those that only the client sees.

The server reports its stages up to the first token in `Server-Timing` (docs/telemetry.md). Before
them an open-loop request may have been late; the rest of the time up to the first text is the
network; decoding and the end are measured by the client.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from loadtest.answers import StreamedAnswer

SERVER, CLIENT = "server", "client"


@dataclass(frozen=True, slots=True)
class Stage:
    """One bar of a waterfall; they follow each other without gaps."""

    name: str
    began_ms: float
    length_ms: float
    seen_by: str


def parse_server_timing(header: str) -> list[tuple[str, float]]:
    """`a;dur=1.5, b;dur=2` -> [("a", 1.5), ("b", 2.0)]. Entries without a duration are left out."""
    stages = []
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip().lower() == "dur" and _is_number(text):
                stages.append((name, float(text)))
    return stages


def timeline(
    answer: StreamedAnswer, sent_s: float, ended_s: float, server_timing: str
) -> list[Stage]:
    """The whole request, from its origin to its end."""
    server = parse_server_timing(server_timing)
    ttft_ms = (answer.first_text_s - sent_s) * 1000
    on_the_way_ms = max(ttft_ms - sum(ms for _, ms in server), 0.0)
    pieces = [
        ("late", (sent_s - answer.origin_s) * 1000, CLIENT),
        *((name, ms, SERVER) for name, ms in server),
        ("network and client", on_the_way_ms, CLIENT),
        ("decode", answer.decode_s * 1000, CLIENT),
        ("end", (ended_s - answer.last_token_s) * 1000, CLIENT),
    ]
    return list(_one_after_the_other(piece for piece in pieces if piece[1] > 0))


def _one_after_the_other(pieces: Iterable[tuple[str, float, str]]) -> Iterable[Stage]:
    at_ms = 0.0
    for name, length_ms, seen_by in pieces:
        yield Stage(name, round(at_ms, 3), round(length_ms, 3), seen_by)
        at_ms += length_ms


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdigit()
