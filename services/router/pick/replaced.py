"""Models that were replaced: no worker is fit for them, and another model of their name has one.

That is the end of a change of a model in place. A request that waits for the old one waits for
nothing; its gateway makes its prompt anew for the new one.
"""

from baton.wire.failures import Unavailable
from services.router.fleet import stand_ins
from services.router.fleet.fleet import Fleet
from services.router.pick.pick_request import PickRequest


def check_not_replaced(fleet: Fleet, request: PickRequest) -> None:
    """Raise Unavailable (no_worker) when the request's model was replaced. A stream that has begun
    can go on with no other model: it waits."""
    if request.has_begun or stand_ins.is_served(fleet, request.model_fp):
        return
    known = fleet.models[request.model_fp]
    for model_fp, other in fleet.models.items():
        if other.name == known.name and stand_ins.is_served(fleet, model_fp):
            raise Unavailable("its model was replaced", reason="no_worker", retry_after_s=1)
