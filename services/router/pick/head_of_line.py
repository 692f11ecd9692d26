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
from typing import Protocol

from baton.system.clock import Clock
from services.router.fleet.views import Unfit, WorkerView

MAX_RESERVED_S = 10.0


class PeerRouters(Protocol):
    """The other routers, as far as they keep workers for themselves (`peers/turns.py`)."""

    has_peers: bool

    def kept_away(self, model_fp: str, *, has_begun: bool = False) -> set[str]: ...
    def may_reserve(self, model_fp: str) -> bool: ...


@dataclass(slots=True)
class _Reservation:
    request_id: str
    worker_id: str
    since: float

    @property
    def until(self) -> float:
        return self.since + MAX_RESERVED_S


class ReservedWorkers:
    """The reserved workers, at most one for each model, in the whole fleet."""

    def __init__(self, clock: Clock, peers: PeerRouters) -> None:
        self._peers = peers
        self._clock = clock
        self._reserved: dict[str, _Reservation] = {}

    def of_model(self, model_fp: str) -> str | None:
        """The id of the worker that is reserved now."""
        reservation = self._reserved.get(model_fp)
        if reservation is None or not reservation.since <= self._clock.now() < reservation.until:
            return None
        return reservation.worker_id

    def kept_away(
        self, model_fp: str, reserved: str | None, *, has_begun: bool
    ) -> dict[str, Unfit]:
        """The workers that are kept for others: this router's `reserved` one, and its peers'."""
        kept_away: set[str] = set()
        if self._peers.has_peers:
            kept_away = self._peers.kept_away(model_fp, has_begun=has_begun)
        if reserved is not None:
            kept_away.add(reserved)
        return dict.fromkeys(kept_away, Unfit.RESERVED)

    def reserve(self, model_fp: str, request_id: str, full: Sequence[WorkerView]) -> None:
        """Reserve one of `full` for this request, which is first in line and lacks only room there.

        The reservation of the same request goes on; after one of another request, which was of no
        use, it begins as much later as that one lasted.
        """
        if not self._peers.may_reserve(model_fp):
            self.end(model_fp)
            return
        reservation = self._reserved.get(model_fp)
        if reservation is None or reservation.request_id != request_id:
            since = self._clock.now()
            if reservation is not None:
                since += max(min(since, reservation.until) - reservation.since, 0.0)
            worker_id = max(full, key=_free).worker_id
            self._reserved[model_fp] = _Reservation(request_id, worker_id, since)
        elif reservation.worker_id not in (view.worker_id for view in full):
            reservation.worker_id = max(full, key=_free).worker_id

    def end(self, model_fp: str) -> None:
        """End the model's reservation: the first request in line does not lack room."""
        self._reserved.pop(model_fp, None)

    def follow(self, model_fps: Collection[str]) -> None:
        """Forget the reservations of all models but these."""
        self._reserved = {
            fp: reservation for fp, reservation in self._reserved.items() if fp in model_fps
        }


def _free(view: WorkerView) -> tuple[int, int]:
    return view.room.num_batch_slots_free, view.room.num_blocks_free
