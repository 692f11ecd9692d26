"""The paths that lead to the gateways. A route has no timeout: the gateway has deadlines."""

from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    RetryPolicyRetryPriority,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.extensions.retry.priority.previous_priorities.v3 import (
    PreviousPrioritiesConfig,
)
from envoy_data_plane.envoy.type.v3 import Int64Range

from services.edge.clusters import GATEWAYS
from services.edge.messages import packed, seconds

API_PREFIX = "/v1/"
# vLLM's, which have no version, and Cohere's.
OTHER_PATHS = ("/tokenize", "/detokenize", "/v2/rerank")
# Files are uploaded here, and may be larger than other bodies.
FILES_PATH = "/v1/files"
# Of a form, besides its file.
_FORM_BYTES = 64 * 1024
# Answered by a gateway, to show that requests reach one.
HEALTH_PATH = "/healthz"

# In none of these cases has a gateway received the request, so a retry cannot repeat work.
_UNRECEIVED = "connect-failure,refused-stream,reset-before-request"
# These keep nothing of a request, so another gateway may answer what one was lost with. What has an
# Idempotency-Key is told that its first try runs, so the client is the one to try it again.
_REPEATABLE_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    *OTHER_PATHS,
)
# Others that have a name of their own in spans.
_NAMED_PATHS = ("/v1/responses", "/v1/conversations", "/v1/batches", "/v1/models")
_UNKEYED = HeaderMatcher(name="idempotency-key", present_match=True, invert_match=True)
# Of each such request Envoy keeps so much until its answer begins; a longer one is not repeated.
_REPEATABLE_BYTES = 256 * 1024
_NUM_RETRIES = 3
# Envoy draws the gateway of a retry, and draws again when it is one that had the request: of two
# gateways each draw finds the wrong one in half of the cases, and the last draw counts.
_NUM_SELECTIONS = 20
# After so many tries the next ones go to another region: this one may be lost as a whole, and Envoy
# not know it yet.
_TRIES_IN_A_REGION = 2
_MAX_INT64 = 2**63 - 1
_NEVER = timedelta(0)


def routes(max_body_bytes: int, max_file_bytes: int) -> RouteConfiguration:
    """The routes of these paths; any other path is 404."""
    files = [
        _refused(RouteMatch(path=FILES_PATH, headers=[_longer(max_file_bytes + _FORM_BYTES)])),
        Route(name=FILES_PATH, match=RouteMatch(path=FILES_PATH), route=_to_gateways()),
    ]
    refused = _refused(RouteMatch(prefix="/", headers=[_longer(max_body_bytes)]))
    repeatable = [_repeatable(path) for path in _REPEATABLE_PATHS]
    served = [
        Route(name=path, match=RouteMatch(path=path), route=_to_gateways())
        for path in (*_REPEATABLE_PATHS, *_NAMED_PATHS, HEALTH_PATH)
    ]
    served.append(
        Route(name=f"{API_PREFIX}*", match=RouteMatch(prefix=API_PREFIX), route=_to_gateways())
    )
    host = VirtualHost(name="all", domains=["*"], routes=[*files, refused, *repeatable, *served])
    return RouteConfiguration(name="edge", virtual_hosts=[host])


def _repeatable(path: str) -> Route:
    return Route(
        name=path,
        match=RouteMatch(path=path, headers=[_UNKEYED]),
        route=_to_gateways(f"{_UNRECEIVED},reset"),
        request_body_buffer_limit=_REPEATABLE_BYTES,
    )


def _longer(max_bytes: int) -> HeaderMatcher:
    """The requests whose body is told to be longer."""
    return HeaderMatcher(
        name="content-length", range_match=Int64Range(start=max_bytes + 1, end=_MAX_INT64)
    )


def _refused(match: RouteMatch) -> Route:
    return Route(
        match=match,
        direct_response=DirectResponseAction(status=413, body=DataSource(inline_string="-")),
    )


def _to_gateways(retry_on: str = _UNRECEIVED) -> RouteAction:
    return RouteAction(
        cluster=GATEWAYS,
        timeout=_NEVER,
        idle_timeout=_NEVER,
        retry_policy=RetryPolicy(
            retry_on=retry_on,
            num_retries=_NUM_RETRIES,
            host_selection_retry_max_attempts=_NUM_SELECTIONS,
            retry_host_predicate=[
                RetryPolicyRetryHostPredicate(
                    name="envoy.retry_host_predicates.previous_hosts",
                    typed_config=packed(PreviousHostsPredicate()),
                )
            ],
            retry_priority=RetryPolicyRetryPriority(
                name="envoy.retry_priorities.previous_priorities",
                typed_config=packed(PreviousPrioritiesConfig(update_frequency=_TRIES_IN_A_REGION)),
            ),
            retry_back_off=RetryPolicyRetryBackOff(
                base_interval=seconds(0.025), max_interval=seconds(0.25)
            ),
        ),
    )
