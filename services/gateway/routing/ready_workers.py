"""The workers of each model that could take a request, in the routers' last view."""

from collections.abc import Iterable, Sequence

from baton.wire.v1 import router_pb2


def ready_to_decode(model: router_pb2.ModelState) -> list[router_pb2.WorkerState]:
    """The ready decode workers of a model; when there is none, the prefill workers that stand in
    for them, as routers have it."""
    ready = [worker for worker in model.workers if worker.ready and not worker.draining]
    decode = [worker for worker in ready if worker.role == router_pb2.WORKER_ROLE_DECODE]
    return decode or [worker for worker in ready if worker.stands_in]


class ReadyWorkers:
    """The workers of one fleet that take requests; `update` replaces them."""

    def __init__(self) -> None:
        self._ready: dict[str, list[router_pb2.WorkerState]] = {}

    def update(self, models: Iterable[router_pb2.ModelState]) -> None:
        """Take in the routers' view."""
        self._ready = {model.model_fp: ready_to_decode(model) for model in models}

    def of(self, model_fp: str, adapter: str = "") -> Sequence[router_pb2.WorkerState]:
        """The workers that take requests for one model, that serve the adapter if there is one;
        empty when there is none."""
        ready = self._ready.get(model_fp, ())
        return [each for each in ready if _serves(each, adapter)] if adapter else ready

    def has_another(self, model_fp: str, worker_id: str, adapter: str = "") -> bool:
        """True when a worker other than this one could take a request for the model, and its
        adapter if there is one."""
        return any(worker.worker_id != worker_id for worker in self.of(model_fp, adapter))


def _serves(worker: router_pb2.WorkerState, adapter: str) -> bool:
    return any(each.fingerprint == adapter for each in worker.adapters)
