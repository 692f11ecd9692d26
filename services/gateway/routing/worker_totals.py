"""What the fleet's workers did with their time, as the routers' views say, on its way to quota."""

from collections.abc import Iterable

from baton.wire.v1 import quota_pb2, router_pb2

# Lives of workers that ended since quota was told last.
_MAX_ENDED = 4096


class WorkersTotals:
    """The newest figures of each life of each worker, of those that ended too until they are
    told."""

    def __init__(self) -> None:
        self._present: dict[tuple[str, int], quota_pb2.WorkerTotals] = {}
        self._ended: list[quota_pb2.WorkerTotals] = []

    def update(self, models: Iterable[router_pb2.ModelState]) -> None:
        """Take in the routers' view."""
        present = {
            (worker.worker_id, worker.totals.boot_epoch): quota_pb2.WorkerTotals(
                worker_id=worker.worker_id,
                model=model.name,
                role=worker.role,
                totals=worker.totals,
            )
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
        return [*self._present.values(), *ended]
