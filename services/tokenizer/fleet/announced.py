"""The models that workers serve, as a router tells it: whole views, and changes of them."""

from dataclasses import dataclass, field

from baton.wire.failures import Unavailable
from baton.wire.v1 import router_pb2

MAX_MODELS = 1000


@dataclass(frozen=True, slots=True)
class Announced:
    """A model that ready workers serve, and where they are."""

    model_fp: str
    name: str
    revision: str
    endpoints: tuple[str, ...]


@dataclass(slots=True)
class _Model:
    name: str
    revision: str
    # The endpoints of the workers that serve it now, by their ids.
    serving: dict[str, str] = field(default_factory=dict)


class RouterView:
    """One router's view of the fleet, from its messages in order."""

    def __init__(self) -> None:
        self._number = 0
        self._models: dict[str, _Model] = {}

    def take_in(self, message: router_pb2.WatchAdmissionResponse) -> None:
        """Take in the next message. Raises Unavailable when one is missing."""
        if message.is_delta and message.number != self._number + 1:
            raise Unavailable("a view of the router is missing")
        self._number = message.number
        if not message.is_delta:
            self._models = {
                model.model_fp: _Model(model.name, model.revision)
                for model in list(message.models)[:MAX_MODELS]
            }
        for model in message.models:
            if (known := self._models.get(model.model_fp)) is not None:
                for worker in model.workers:
                    _note(known.serving, worker)

    def announced(self) -> dict[str, Announced]:
        """The models that have a worker which serves them, by fingerprint."""
        return {
            model_fp: Announced(model_fp, each.name, each.revision, tuple(each.serving.values()))
            for model_fp, each in self._models.items()
            if each.serving
        }


def _note(serving: dict[str, str], worker: router_pb2.WorkerState) -> None:
    """A worker that drains still has answers to end, whose requests may come again."""
    if worker.ready or worker.draining:
        serving[worker.worker_id] = worker.endpoint
    else:
        serving.pop(worker.worker_id, None)
