"""Requests that not every engine can serve: where they may go, and the refusal when nowhere.

A worker registers the parameters of requests that its engine does not serve; a request names those
that it has. Most have none, and come here not at all.
"""

from collections.abc import Iterable

from baton.wire.failures import InvalidRequest
from services.router.fleet.fleet import Fleet
from services.router.fleet.reported import DECODE, PREFILL
from services.router.fleet.views import Unfit
from services.router.fleet.worker import Worker
from services.router.pick.pick_request import PickRequest


def lacking(fleet: Fleet, request: PickRequest) -> dict[str, Unfit]:
    """The workers of the model that do not serve a parameter of the request, by their ids."""
    workers = (
        worker for role in (DECODE, PREFILL) for worker in fleet.of_model(request.model_fp, role)
    )
    return {
        worker.worker_id: Unfit.UNSUPPORTED for worker in workers if _missing(request, (worker,))
    }


def check_served(fleet: Fleet, request: PickRequest) -> None:
    """Raise InvalidRequest, which names parameter and engine, when no decode worker of the model
    can ever serve the request, also one that is away now."""
    workers = fleet.of_model(request.model_fp, DECODE)
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


def _missing(request: PickRequest, workers: Iterable[Worker]) -> list[str]:
    """The parameters of the request that some worker's engine lacks; none if one has them all."""
    missing: set[str] = set()
    for worker in workers:
        lacks = request.needs & worker.registration.unsupported
        if not lacks:
            return []
        missing |= lacks
    return sorted(missing)
