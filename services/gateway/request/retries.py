"""After which failures a request goes on with another attempt, and without which workers."""

from collections.abc import Sequence

from baton.wire.failures import BatonError
from baton.wire.v1 import router_pb2

# Attempts that may fail; the request fails with the last of them.
MAX_FAILURES = 3
# A worker that drains has not failed, but a request cannot move for ever.
MAX_PLANNED_MIGRATIONS = 8
MAX_EXCLUDED = 16
# Nothing is wrong with the worker, and nothing was computed; there may be room in a moment.
REFUSALS = frozenset({"no_room", "prefill_refused"})
RETRIED_REASONS = REFUSALS | {"worker_lost", "draining", "unavailable", "handoff_failed"}
_OF_PREFILL = frozenset({"handoff_failed", "prefill_refused"})


class Retries:
    """Counts the failures of one request."""

    def __init__(self) -> None:
        self._excluded: list[str] = []
        self._num_failures = 0
        self._num_planned_migrations = 0

    @property
    def excluded(self) -> Sequence[str]:
        """The workers that the next pick shall avoid; the one that failed last stands last."""
        return self._excluded

    def note(self, error: BatonError, pick: router_pb2.PickResponse, *, is_guilty: bool) -> str:
        """An attempt failed; returns the worker at fault. Raises `error` when no other attempt
        follows. `is_guilty`: one more pick tells the router that the request kills cores, and the
        router refuses it."""
        reason = error.reason
        self._num_planned_migrations += reason == "draining"
        self._num_failures += reason not in REFUSALS and reason != "draining"
        most = MAX_FAILURES + is_guilty
        is_too_often = (
            self._num_failures >= most or self._num_planned_migrations > MAX_PLANNED_MIGRATIONS
        )
        if reason not in RETRIED_REASONS or is_too_often:
            raise error
        worker_id = _at_fault(pick, error)
        self._excluded = [*self._excluded[1 - MAX_EXCLUDED :], worker_id]
        return worker_id


def _at_fault(pick: router_pb2.PickResponse, error: BatonError) -> str:
    is_prefill = error.reason in _OF_PREFILL and pick.HasField("prefill")
    return pick.prefill.worker_id if is_prefill else pick.decode.worker_id
