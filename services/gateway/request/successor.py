"""Requests whose model was replaced while they waited: its last worker has gone, and ready workers
serve another model of the name that the client asked for. Such a request begins anew there, as long
as nothing of an answer has come.
"""

from baton.wire.failures import BatonError
from services.gateway.request.job import Job
from services.gateway.request.trace import RequestTrace
from services.gateway.routing.models import ModelDirectory, ServedModel

# Models that are replaced faster are for an operator to explain.
MAX_SUCCESSORS = 3
# A router says so: no worker is ready for the model, or none has ever registered it.
_LEFT_BEHIND = frozenset({"no_worker", "model_not_found"})


def successor_of(
    job: Job, error: BatonError, trace: RequestTrace, directory: ModelDirectory
) -> ServedModel | None:
    """The model for which a failed request begins anew; None when its failure stands."""
    if error.reason not in _LEFT_BEHIND or trace.usage.num_received:
        return None
    return directory.successor(job.model)
