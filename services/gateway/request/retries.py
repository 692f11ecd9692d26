"""The retries of a request: the failures after which another attempt follows, and the workers that
it leaves out."""

from collections.abc import Sequence

from baton.wire.failures import BatonError
from baton.wire.v1 import router_pb2

# The request fails with the last of so many attempts.
MAX_FAILURES = 3
# A worker that drains has not failed, but a request must not migrate for ever.
MAX_PLANNED_MIGRATIONS = 8
MAX_EXCLUDED = 16
# The worker is well and computed nothing; there may be room in a moment.
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
        """The workers that the next pick should avoid; the one that failed last stands last."""
        return self._excluded

    def note(self, error: BatonError, pick: router_pb2.PickResponse, *, is_guilty: bool) -> str:
        """Count the failure of an attempt; returns the worker at fault. Raises `error` when no
        other attempt follows. `is_guilty`: one more pick reports to the router that the request
        kills cores, and the router refuses it."""
        if error.reason == "draining":
            self._num_planned_migrations += 1
        elif error.reason not in REFUSALS:
            self._num_failures += 1
        most = MAX_FAILURES + 1 if is_guilty else MAX_FAILURES
        is_too_often = (
            self._num_failures >= most or self._num_planned_migrations > MAX_PLANNED_MIGRATIONS
        )
        if error.reason not in RETRIED_REASONS or is_too_often:
            raise error
        worker_id = _at_fault(pick, error)
        self._excluded = [*self._excluded[1 - MAX_EXCLUDED :], worker_id]
        return worker_id


def _at_fault(pick: router_pb2.PickResponse, error: BatonError) -> str:
    is_prefill = error.reason in _OF_PREFILL and pick.HasField("prefill")
    return pick.prefill.worker_id if is_prefill else pick.decode.worker_id
