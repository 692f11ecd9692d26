"""What the fleet's workers did with their time, as the routers' views say, on its way to quota."""

from collections.abc import Iterable

from baton.wire.v1 import quota_pb2, router_pb2

# Lives of workers that ended since quota was told last.
_MAX_ENDED = 4096
# Quota is told of all workers once in so many beats: once a minute.
BEATS_PER_TOTALS = 12


class WorkersTotals:
    """The newest figures of each life of each worker. Quota is told of a life that has ended with
    the next beat, of all others once a minute and when the gateway leaves."""

    def __init__(self) -> None:
        # By worker and life: the model's name, and the worker as the view shows it.
        self._present: dict[tuple[str, int], tuple[str, router_pb2.WorkerState]] = {}
        self._ended: list[tuple[str, router_pb2.WorkerState]] = []
        self._num_beats = 0

    def update(self, models: Iterable[router_pb2.ModelState]) -> None:
        """Take in the routers' view, which comes several times a second."""
        present = {
            (worker.worker_id, worker.totals.boot_epoch): (model.name, worker)
            for model in models
            for worker in model.workers
            if worker.totals.uptime_us
        }
        self._ended += [each for life, each in self._present.items() if life not in present]
        del self._ended[:-_MAX_ENDED]
        self._present = present

    def tell_all(self) -> None:
        """Let the next beat tell of all workers."""
        self._num_beats = -1

    def take(self) -> list[quota_pb2.WorkerTotals]:
        """What quota is told with this beat."""
        self._num_beats = (self._num_beats + 1) % BEATS_PER_TOTALS
        told, self._ended = self._ended, []
        if self._num_beats == 0:
            told = [*self._present.values(), *told]
        return [_totals_of(*life) for life in told]


def _totals_of(model_name: str, worker: router_pb2.WorkerState) -> quota_pb2.WorkerTotals:
    return quota_pb2.WorkerTotals(
        worker_id=worker.worker_id, model=model_name, role=worker.role, totals=worker.totals
    )
