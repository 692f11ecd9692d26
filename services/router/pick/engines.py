"""Requests that not every worker can serve: where they may go, and the refusal when nowhere.

A worker registers the parameters of requests that its engine does not serve, and tells which LoRA
adapters it serves; a request names those that it has. Most have none, and come here not at all.
"""

from collections.abc import Iterable

from baton.wire.failures import InvalidRequest, Unavailable
from services.router.fleet.fleet import Fleet
from services.router.fleet.reported import DECODE, PREFILL
from services.router.fleet.views import Unfit
from services.router.fleet.worker import Worker
from services.router.pick.pick_request import PickRequest

_RETRY_S = 2.0


def lacking(fleet: Fleet, request: PickRequest) -> dict[str, Unfit]:
    """The workers of the model that do not serve the request, by their ids."""
    workers = fleet.of_model(request.model_fp, DECODE) + fleet.of_model(request.model_fp, PREFILL)
    unable = {}
    for worker in workers:
        if not worker.serves_adapter(request.adapter):
            unable[worker.worker_id] = Unfit.NO_ADAPTER
        elif _missing(request, (worker,)):
            unable[worker.worker_id] = Unfit.UNSUPPORTED
    return unable


def check_served(fleet: Fleet, request: PickRequest) -> None:
    """Raise InvalidRequest, which names parameter and engine, when no decode worker of the model
    can ever serve the request, also one that is away now; Unavailable when none has its adapter."""
    workers = fleet.of_model(request.model_fp, DECODE)
    if workers and not with_adapter(workers, request):
        message = "no worker serves the adapter of this model now"
        raise Unavailable(message, reason="no_worker", retry_after_s=_RETRY_S)
    missing = _missing(request, workers)
    if not workers or not missing:
        return
    names = " and ".join(missing)
    engine_names = ", ".join(sorted({worker.registration.engine for worker in workers}))
    raise InvalidRequest(
        f"{names}: not served by the engine of this model ({engine_names})",
        reason="unsupported_parameter",
        param=missing[0],
    )


def with_adapter(workers: Iterable[Worker], request: PickRequest) -> list[Worker]:
    """Those of the workers that serve the request's adapter."""
    return [worker for worker in workers if worker.serves_adapter(request.adapter)]


def _missing(request: PickRequest, workers: Iterable[Worker]) -> list[str]:
    """The parameters of the request that some worker's engine lacks; none if one has them all."""
    missing: set[str] = set()
    for worker in workers:
        lacks = request.needs & worker.registration.unsupported
        if not lacks:
            return []
        missing |= lacks
    return sorted(missing)
