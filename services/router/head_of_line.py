"""Reserves one decode worker for the request at the head of the line, until it has room there.

A request that needs much room, such as one with many choices, could starve: every block that
becomes free would go to a smaller request behind it. If all requests waited for it instead, they
would starve. So the worker with the most room is reserved for it and empties, while the requests
behind it use the other workers.

A reservation lasts MAX_RESERVED_S at most, because streams may run for longer than a request
should wait and there may be only one worker. After that the request takes what it finds. After a
reservation that was of no use there is none for as long: a client that asks for much and leaves,
again and again, blocks half of one worker at most. Knows no queue.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from services.router.picker import WorkerView

MAX_RESERVED_S = 10.0


@dataclass(slots=True)
class _Reservation:
    request_id: str
    worker_id: str
    since: float

    @property
    def until(self) -> float:
        return self.since + MAX_RESERVED_S


class ReservedWorkers:
    """At most one for each model."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reserved: dict[str, _Reservation] = {}

    def of_model(self, model_fp: str) -> str:
        """The worker that is reserved now; empty when there is none."""
        reservation = self._reserved.get(model_fp)
        is_reserved = (
            reservation is not None and reservation.since <= self._clock.now() < reservation.until
        )
        return reservation.worker_id if reservation is not None and is_reserved else ""

    def reserve(self, model_fp: str, request_id: str, full: Sequence[WorkerView]) -> None:
        """The first in line is this request, and only room on one of these is what it lacks."""
        reservation, now = self._reserved.get(model_fp), self._clock.now()
        if reservation is None or reservation.request_id != request_id:
            in_vain_s = (
                0.0
                if reservation is None
                else max(min(now, reservation.until) - reservation.since, 0.0)
            )
            reservation = self._reserved[model_fp] = _Reservation(request_id, "", now + in_vain_s)
        if reservation.worker_id not in (view.worker_id for view in full):
            reservation.worker_id = max(full, key=_free).worker_id

    def end(self, model_fp: str) -> None:
        """The first in line lacks no room."""
        self._reserved.pop(model_fp, None)

    def follow(self, model_fps: Collection[str]) -> None:
        """There are no other models."""
        self._reserved = {
            fp: reservation for fp, reservation in self._reserved.items() if fp in model_fps
        }


def _free(view: WorkerView) -> tuple[int, int]:
    return view.room.num_batch_slots_free, view.room.num_blocks_free
