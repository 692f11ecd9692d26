"""The open requests of this gateway, for its admin port: no prompt, no answer, no key."""

from collections import defaultdict

import msgspec

from services.gateway.gateway import Gateway
from services.gateway.request.trace import RequestTrace

# A page for people: the oldest come first, and they are the interesting ones.
MAX_ROWS = 500


class OpenRequest(msgspec.Struct, frozen=True):
    """One open request. `workers` are the decode workers that it runs on."""

    request_id: str
    endpoint: str
    tenant: str
    model: str
    stage: str
    age_s: float
    stage_age_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_attempts: int
    workers: list[str]


def open_requests(gateway: Gateway) -> bytes:
    """The JSON list of the requests that have not ended, oldest first."""
    workers: dict[str, list[str]] = defaultdict(list)
    for request_id, worker_id in gateway.links.open_attempts():
        workers[request_id].append(worker_id)
    oldest = gateway.auditor.running()[:MAX_ROWS]
    return msgspec.json.encode([_row(trace, workers[trace.request_id]) for trace in oldest])


def _row(trace: RequestTrace, workers: list[str]) -> OpenRequest:
    return OpenRequest(
        request_id=trace.request_id,
        endpoint=trace.incoming.endpoint.name,
        tenant=trace.tenant,
        model=trace.model_name,
        stage=trace.stage,
        age_s=round(trace.timer.age_s, 3),
        stage_age_s=round(trace.timer.stage_age_s, 3),
        num_prompt_tokens=trace.usage.num_prompt_tokens,
        num_output_tokens=trace.usage.num_output_tokens,
        num_attempts=trace.usage.num_attempts,
        workers=workers,
    )
