"""Prefill workers that decode while no decode worker of their model can (decision 0104).

A pool whose workers all die, or are cut off, at once is away for as long as a model takes to load.
The prefill workers have the same weights and engine: they serve whole requests for that time, and
no longer than that, since each answer that they write makes the prompts behind it wait.
"""

from collections.abc import Iterator

from services.router.fleet.fleet import Fleet
from services.router.fleet.reported import DECODE, PREFILL
from services.router.fleet.views import Unfit
from services.router.fleet.worker import Worker


def decoding_role(fleet: Fleet, model_fp: str, *, isolated: bool = False) -> int:
    """Return the role of the workers that decode now: PREFILL when one of these can, and no decode
    worker may be picked. Looks at few workers where the first ones are fit."""
    decodes = fleet.of_model(model_fp, DECODE)
    if any(fleet.is_fit(worker, isolated) for worker in decodes):
        return DECODE
    # A router that has just started may not have met them yet.
    if not decodes and not fleet.is_settled():
        return DECODE
    can = any(map(_can_decode, _fit_prefills(fleet, model_fp, isolated=isolated)))
    return PREFILL if can else DECODE


def is_served(fleet: Fleet, model_fp: str) -> bool:
    """Return whether a worker of the model may be picked to decode."""
    role = decoding_role(fleet, model_fp)
    return role == PREFILL or any(map(fleet.is_fit, fleet.of_model(model_fp, role)))


def unable(fleet: Fleet, model_fp: str) -> dict[str, Unfit]:
    """The prefill workers, by id, that serve no gateways: those of an earlier version."""
    return {
        worker.worker_id: Unfit.UNSUPPORTED
        for worker in fleet.of_model(model_fp, PREFILL)
        if not _can_decode(worker)
    }


def _fit_prefills(fleet: Fleet, model_fp: str, *, isolated: bool) -> Iterator[Worker]:
    return (each for each in fleet.of_model(model_fp, PREFILL) if fleet.is_fit(each, isolated))


def _can_decode(worker: Worker) -> bool:
    return worker.registration.stands_in
