"""The decode worker that takes nobody else in while the first in line waits for room there.

Who needs much, such as many choices at once, would wait for ever if everything that becomes free
went to those behind it, and they would wait for it if nothing did. So one worker is kept for it,
the one with the most room, and empties, while those behind use the others. For MAX_KEPT_S at most:
streams may run for longer than anybody should wait, and there may be only one worker. After that it
takes what it finds. Knows neither the queue nor why there is no room.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from baton.system.clock import Clock
from services.router.picker import WorkerView

MAX_KEPT_S = 10.0


@dataclass(slots=True)
class _Kept:
    request_id: str
    worker_id: str
    until: float


class KeptWorkers:
    """At most one for each model."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def of_model(self, model_fp: str) -> str:
        """The worker that is kept now; empty when there is none."""
        kept = self._kept.get(model_fp)
        return kept.worker_id if kept is not None and self._clock.now() < kept.until else ""

    def keep(self, model_fp: str, request_id: str, full: Sequence[WorkerView]) -> None:
        """The first in line is this request, and only room on one of these is what it lacks."""
        kept = self._kept.get(model_fp)
        if kept is None or kept.request_id != request_id:
            kept = _Kept(request_id, "", self._clock.now() + MAX_KEPT_S)
            self._kept[model_fp] = kept
        if kept.worker_id not in (view.worker_id for view in full):
            kept.worker_id = max(full, key=_free).worker_id

    def end(self, model_fp: str) -> None:
        """The first in line lacks no room."""
        self._kept.pop(model_fp, None)

    def follow(self, model_fps: Collection[str]) -> None:
        """There are no other models."""
        self._kept = {fp: kept for fp, kept in self._kept.items() if fp in model_fps}


def _free(view: WorkerView) -> tuple[int, int]:
    return view.room.num_slots_free, view.room.num_blocks_free
