"""The decode worker that takes nobody else in while the first in line waits for room there.

Who needs much, such as many choices at once, would wait for ever if everything that becomes free
went to those behind it, and they would wait for it if nothing did. So one worker is kept for it,
the one with the most room, and empties, while those behind use the others. For MAX_KEPT_S at most:
streams may run for longer than anybody should wait, and there may be only one worker. After that it
takes what it finds. When a worker was kept in vain, none is for as long: whoever asks for much and
leaves, again and again, has half of one worker at most. Knows neither the queue nor why there is no
room.
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
    since: float

    @property
    def until(self) -> float:
        return self.since + MAX_KEPT_S


class KeptWorkers:
    """At most one for each model."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def of_model(self, model_fp: str) -> str:
        """The worker that is kept now; empty when there is none."""
        kept = self._kept.get(model_fp)
        is_kept = kept is not None and kept.since <= self._clock.now() < kept.until
        return kept.worker_id if kept is not None and is_kept else ""

    def keep(self, model_fp: str, request_id: str, full: Sequence[WorkerView]) -> None:
        """The first in line is this request, and only room on one of these is what it lacks."""
        kept, now = self._kept.get(model_fp), self._clock.now()
        if kept is None or kept.request_id != request_id:
            in_vain_s = 0.0 if kept is None else max(min(now, kept.until) - kept.since, 0.0)
            kept = self._kept[model_fp] = _Kept(request_id, "", now + in_vain_s)
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
