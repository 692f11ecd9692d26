"""The record of cores that died during a request: it makes the request a suspect, or clears it.

A worker whose core died names its suspects: the requests of the step in which that happened. Each
request has a CrashRecord. A suspect computes in steps of its own from then on. If it is named again
before it has proved harmless, it has killed two cores, and the router refuses it. The gateway's one
Crashes keeps what does not arrive with an attempt: names that come late, and the fingerprints of
suspects that proved harmless. The router's quarantine outlives both.
"""

import hashlib
import hmac
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from baton.wire.failures import BatonError
from baton.wire.limits import MAX_DEATHS, NUM_TOKENS_ALONE
from baton.wire.v1 import router_pb2

_PURPOSE = b"baton request fingerprint v1"
MAX_NAMED = 1024
MAX_HARMLESS = 256
# Failures that count against the worker. Refusals for room or because it drains do not.
_WORKER_FAILURES = frozenset({"worker_lost", "handoff_failed", "unavailable"})


@dataclass(slots=True)
class CrashRecord:
    """The crash record of one request. Only Crashes changes it, before and after each attempt."""

    request_id: str = ""
    num_choices: int = 1
    fingerprint: bytes = b""
    # Cores that died in a step with it since it last proved harmless, or with another like it.
    num_deaths: int = 0
    # The worker failed the last attempt, and that was not reported to a router yet.
    has_failed: bool = False

    @property
    def is_suspect(self) -> bool:
        """True when its attempts must compute in steps of their own."""
        return self.num_deaths > 0

    @property
    def is_guilty(self) -> bool:
        """True when it has killed MAX_DEATHS cores: the next pick only reports that."""
        return self.num_deaths >= MAX_DEATHS


class Crashes:
    """The crashes that one gateway knows of. Both lists are bounded; the oldest are forgotten."""

    def __init__(self) -> None:
        self._named: dict[str, None] = {}
        self._harmless: deque[bytes] = deque(maxlen=MAX_HARMLESS)

    def ask(self, record: CrashRecord, request: router_pb2.PickRequest) -> None:
        """Report in a pick what is known of its request, and the suspects that were cleared."""
        record.request_id = request.request_id
        record.num_choices = request.num_choices
        record.fingerprint = request.poison_fingerprint
        request.num_deaths = record.num_deaths
        request.has_failed, record.has_failed = record.has_failed, False
        request.harmless_fingerprints.extend(self._harmless)
        self._harmless.clear()

    def picked(self, record: CrashRecord, pick: router_pb2.PickResponse) -> None:
        """Note a pick's answer: the router may know of another request like this one."""
        if pick.is_suspect:
            record.num_deaths = max(record.num_deaths, 1)

    def failed(self, record: CrashRecord, error: BatonError, num_tokens: int) -> None:
        """Note that an attempt failed after it brought `num_tokens`, over all choices."""
        if num_tokens >= NUM_TOKENS_ALONE * record.num_choices:
            self.finished(record)
        if error.is_suspect:
            record.num_deaths += 1
        record.has_failed = error.reason in _WORKER_FAILURES
        if record.request_id in self._named:
            del self._named[record.request_id]
            record.num_deaths = max(record.num_deaths, 1)

    def finished(self, record: CrashRecord) -> None:
        """Clear a request whose attempt ended well, or came far enough: it killed no core."""
        if record.is_suspect:
            record.num_deaths = 0
            self._harmless.append(record.fingerprint)

    def name(self, request_ids: Iterable[str]) -> None:
        """Note the requests that ran in the last step of a worker that died whole, as its next life
        names them."""
        self._named.update(dict.fromkeys(request_ids))
        for request_id in list(self._named)[: max(0, len(self._named) - MAX_NAMED)]:
            del self._named[request_id]


def request_fingerprint(server_secret: bytes, parts: Iterable[bytes]) -> bytes:
    """32 bytes that are equal for requests of equal parts and reveal nothing of them."""
    framed = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    return hmac.digest(server_secret, b"".join([_PURPOSE, *framed]), hashlib.sha256)
