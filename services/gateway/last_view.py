"""The decode workers that the routers told last: what a gateway knows while none of them answers.

The view may be old. Whom to ask is decided by what is certain here, the attempts on this gateway's
own links; the workers' admission stays the authority.
"""

from collections.abc import Iterable

from baton.wire.v1 import router_pb2


class LastView:
    """Of one gateway; `update` replaces it."""

    def __init__(self) -> None:
        self._ready: dict[str, list[router_pb2.WorkerState]] = {}

    def update(self, models: Iterable[router_pb2.ModelState]) -> None:
        """Take in what the routers tell."""
        self._ready = {model.model_fp: _ready_decode(model) for model in models}

    def has_another(self, model_fp: str, worker_id: str) -> bool:
        """Whether a decode worker other than this one was ready for the model."""
        return any(worker.worker_id != worker_id for worker in self._ready.get(model_fp, ()))


def _ready_decode(model: router_pb2.ModelState) -> list[router_pb2.WorkerState]:
    decode = router_pb2.WORKER_ROLE_DECODE
    return [w for w in model.workers if w.role == decode and w.ready and not w.draining]
