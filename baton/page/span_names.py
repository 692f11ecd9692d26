"""The names of spans, services and attributes that the page knows, all in one place.

Spans of an older or newer stack may stand in the same store, so several names may mean one thing.
"""

from collections.abc import Mapping

from baton.page.span_store import StoredSpan

REQUEST = "request"
MOVE = "move"
DECODE = "decode"
HANDOFF = "handoff"
# A prefill worker's side of a handoff, and the part of it in which the prompt is computed.
PREFILL = "prefill"
PREFILL_COMPUTE = "prefill.compute"
PICK = "router.pick"

TENANT = "baton.tenant"
MODEL = "gen_ai.request.model"
OUTCOME = "baton.outcome"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
NUM_ATTEMPTS = "baton.num_attempts"
WORKER = "baton.worker_id"
EPOCH = "baton.epoch"
PREFILL_ENDPOINT = "baton.prefill_endpoint"
NUM_BYTES = "baton.num_bytes_received"
NUM_BLOCKS = "baton.num_blocks_received"
TRANSPORT = "baton.transport"
_FIRST_TOKEN = ("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")
_SERVICE_PREFIX = "baton-"


def kind_of(span: StoredSpan) -> str:
    """The kind of a span: its name, but for the whole request's, which is known by its outcome. A
    prefill worker's side has an outcome, too."""
    is_request = OUTCOME in span.attributes and span.name != PREFILL
    return REQUEST if is_request else span.name


def service_of(span: StoredSpan) -> str:
    """The service of a span, as the page colours it: `decode_worker`."""
    return span.service.removeprefix(_SERVICE_PREFIX).replace("-", "_")


def number(attributes: Mapping[str, str], name: str) -> float | None:
    """An attribute that is a number; None when it is not there."""
    try:
        return float(attributes[name])
    except (KeyError, ValueError):
        return None


def count(attributes: Mapping[str, str], name: str) -> int:
    """An attribute that is a count; 0 when it is not there."""
    return int(number(attributes, name) or 0)


def first_token_s(request: StoredSpan) -> float | None:
    """The time from a request's arrival to its first token, where its span says it."""
    found = (number(request.attributes, name) for name in _FIRST_TOKEN)
    return next((seconds for seconds in found if seconds is not None), None)
