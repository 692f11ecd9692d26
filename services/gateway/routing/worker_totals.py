"""What the fleet's workers did with their time, as the routers' views say, on its way to quota."""

from collections.abc import Iterable

from baton.wire.v1 import quota_pb2, router_pb2

# Lives of workers that ended since quota was told last.
_MAX_ENDED = 4096


class WorkersTotals:
    """The newest figures of each life of each worker, of those that ended too until they are
    told."""

    def __init__(self) -> None:
        # By worker and life: the model's name, and the worker as the view shows it.
        self._present: dict[tuple[str, int], tuple[str, router_pb2.WorkerState]] = {}
        self._ended: list[tuple[str, router_pb2.WorkerState]] = []

    def update(self, models: Iterable[router_pb2.ModelState]) -> None:
        """Take in the routers' view, which comes several times a second."""
        present = {
            (worker.worker_id, worker.totals.boot_epoch): (model.name, worker)
            for model in models
            for worker in model.workers
            if worker.totals.uptime_us
        }
        for life in self._present.keys() - present.keys():
            self._ended.append(self._present[life])
        del self._ended[:-_MAX_ENDED]
        self._present = present

    def take(self) -> list[quota_pb2.WorkerTotals]:
        """What quota is told now."""
        ended, self._ended = self._ended, []
        return [_totals_of(*life) for life in (*self._present.values(), *ended)]


def _totals_of(model_name: str, worker: router_pb2.WorkerState) -> quota_pb2.WorkerTotals:
    return quota_pb2.WorkerTotals(
        worker_id=worker.worker_id, model=model_name, role=worker.role, totals=worker.totals
    )
