"""What cores' deaths say of one request: whether it is a suspect, and how it clears itself.

Each request has a record of its own; what outlives it is the router's (`quarantine.py` there). One
that was named computes in steps of its own from then on; named again before it has proved harmless,
it has killed two cores, and the router refuses it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from baton.wire.failures import BatonError
from baton.wire.suspects import NUM_TOKENS_ALONE
from baton.wire.v1 import router_pb2

MAX_DEATHS = 2
MAX_NAMED = 1024
# Failures that say something of the worker. Refusals for room or because it drains do not.
_WORKER_FAILURES = frozenset({"worker_lost", "handoff_failed", "unavailable"})


@dataclass(slots=True)
class CrashRecord:
    """Changed by the pipeline, before and after each attempt."""

    # Cores that died in a step with it since it last proved harmless, or with another like it.
    num_deaths: int = 0
    # The worker failed the last attempt.
    has_failed: bool = False

    @property
    def is_suspect(self) -> bool:
        """Its attempts compute in steps of their own."""
        return self.num_deaths > 0

    @property
    def is_guilty(self) -> bool:
        """It has killed as many cores as anybody may: the next pick only tells the router."""
        return self.num_deaths >= MAX_DEATHS

    def picked(self, pick: router_pb2.PickResponse) -> None:
        """The router may know of another request like this one."""
        if pick.is_suspect:
            self.num_deaths = max(self.num_deaths, 1)

    def ended(self, error: BatonError, num_tokens: int, num_choices: int) -> None:
        """An attempt failed after it brought `num_tokens`, over all choices."""
        if num_tokens >= NUM_TOKENS_ALONE * num_choices:
            self.num_deaths = 0
        self.num_deaths += error.is_suspect
        self.has_failed = error.reason in _WORKER_FAILURES

    def named(self) -> None:
        """A worker's next life named it: it ran in the last step of a process that died whole."""
        self.num_deaths = max(self.num_deaths, 1)


class NamedRequests:
    """Requests that hellos of workers' next lives have named; the oldest are forgotten."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, request_ids: Iterable[str]) -> None:
        self._ids.update(dict.fromkeys(request_ids))
        for request_id in list(self._ids)[: max(0, len(self._ids) - MAX_NAMED)]:
            del self._ids[request_id]

    def take(self, request_id: str) -> bool:
        """Whether it was named since this was asked last."""
        return self._ids.pop(request_id, False) is None
