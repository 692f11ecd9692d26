"""Prefill workers that decode while no decode worker of their model can (decision 0104).

A pool whose workers all die, or are cut off, at once is away for as long as a model takes to load.
The prefill workers have the same weights and engine: they serve whole requests for that time, and
no longer than that, since each answer that they write makes the prompts behind it wait.
"""

from services.router.fleet.fleet import Fleet
from services.router.fleet.reported import DECODE, PREFILL
from services.router.fleet.views import Unfit
from services.router.fleet.worker import Worker


def are_needed(fleet: Fleet, model_fp: str, *, isolated: bool = False) -> bool:
    """Return whether prefill workers decode now: one of them can, and no decode worker may be
    picked. Looks at few workers where the first ones are fit."""
    if any(fleet.is_fit(worker, isolated) for worker in fleet.of_model(model_fp, DECODE)):
        return False
    return any(
        _can_decode(worker) and fleet.is_fit(worker, isolated)
        for worker in fleet.of_model(model_fp, PREFILL)
    )


def unable(fleet: Fleet, model_fp: str) -> dict[str, Unfit]:
    """The prefill workers, by id, that serve no gateways: those of an earlier version."""
    return {
        worker.worker_id: Unfit.UNSUPPORTED
        for worker in fleet.of_model(model_fp, PREFILL)
        if not _can_decode(worker)
    }


def _can_decode(worker: Worker) -> bool:
    return worker.registration.stands_in
