"""Channels, rare unary calls, and the BatonError that a failed call stands for.

LINK_OPTIONS make the silent loss of a shared stream visible within 1.2 s and reconnecting quick;
grpc's defaults do neither. A process that dies closes its connections at once. Only a lost network
or a process that stands still must be found by keepalive pings. A busy process answers pings late:
with a timeout of 150 ms, living peers were cut where ten processes shared a core. grpc.aio's
`keepalive_timeout_ms` alone is without effect: the ping timer is `grpc.http2.ping_timeout_ms`. A
link has a connection of its own: with shared ones, the next dial could be given the connection that
is being given up.

A balanced channel spreads its calls and streams over the replicas of a service that say SERVING. A
call that finds its replica gone is repeated at another one: all calls over such a channel are pure
or known by their request id. grpc does both by itself, from a service config (gRFC A6, A17). The
calls of requests ride on streams (baton/runtime/calls/).
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from baton.runtime import peer_tls
from baton.runtime.peer_tls import PeerTls
from baton.runtime.renewed_channel import Options, RenewedChannel
from baton.wire import failures, metadata
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import failure_pb2

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

MESSAGE_OPTIONS: Options = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
# A peer that is back is found within 0.12 s: grpc's shortest pause is 100 ms, and it makes each up
# to a fifth shorter or longer. The "minimum" is the time that one attempt may take.
_RECONNECT: Options = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 100),
    # A lost peer may be back at another address of its name. By default grpc asks every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
]
LINK_OPTIONS: Options = [
    ("grpc.keepalive_time_ms", 200),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    *_RECONNECT,
]
_OWN_CONNECTION: Options = [("grpc.use_local_subchannel_pool", 1)]
# The transport buffers some 100 KiB for a peer that does not read, not 6 MiB: the writer notices.
_SMALL_WINDOW: Options = [("grpc.http2.bdp_probe", 0)]
_UNARY_OPTIONS: Options = [
    # A replica that hangs without closing its connection is gone after two seconds.
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    *_RECONNECT,
]
# The statuses of a call to a peer that is gone: a process that fails cancels the calls that it
# serves. A caller that cancels its own call gets no status.
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# gRPC's own words, with the status INTERNAL, when a connection ends while a call on it begins.
_CORE_ERROR = "Internal error from Core"
_NO_PROXY: Options = [("grpc.enable_http_proxy", 0)]
_BALANCED = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": ""},
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.25s",
                "backoffMultiplier": 5,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # Retries end when failures outnumber a tenth of the calls: an outage of a whole service must
    # not multiply its calls.
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
}


class _Failed(Protocol):
    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


def open_channel(
    target: str,
    service: str = "",
    *,
    link: bool = False,
    small_window: bool = False,
    tls: PeerTls | None = None,
) -> grpc.aio.Channel:
    """A channel to "host:port", which connects on first use.

    `service`: the one that has to answer ("router"), where each has a certificate of its own; any
    peer without it. `link`: for a shared stream. `small_window`: for small frames whose writer must
    soon notice that they are not read. `tls`: the identity to show instead of the process's own.
    """
    options = MESSAGE_OPTIONS + _NO_PROXY
    options += LINK_OPTIONS + _OWN_CONNECTION if link else _UNARY_OPTIONS
    options += _SMALL_WINDOW if small_window else []
    return _open(target, options, tls, service)


def open_outside_channel(endpoint: str, authorities: bytes | None = None) -> grpc.aio.Channel:
    """A channel to a server that is not a peer, at "http[s]://host:port": plaintext, or TLS with
    `authorities` (PEM; None = the public ones). This process's identity is never shown to it."""
    target = endpoint.rpartition("://")[2]
    if endpoint.startswith("https://"):
        trusted = grpc.ssl_channel_credentials(authorities)
        return grpc.aio.secure_channel(target, trusted, options=MESSAGE_OPTIONS)
    return grpc.aio.insecure_channel(target, options=MESSAGE_OPTIONS + _NO_PROXY)


def open_balanced_channel(
    endpoints: Sequence[str], service: str = "", *, tls: PeerTls | None = None
) -> grpc.aio.Channel:
    """A channel to all replicas of a service: one "host:port", whose name may stand for several
    addresses, or several with addresses of one family. Else as `open_channel`."""
    assert endpoints, "at least one replica"
    family = "ipv6" if endpoints[0].startswith("[") else "ipv4"
    target = endpoints[0] if len(endpoints) == 1 else f"{family}:{','.join(endpoints)}"
    balanced: Options = [("grpc.service_config", json.dumps(_BALANCED))]
    # A second channel is opened to be rid of connections to replicas that hang.
    options = MESSAGE_OPTIONS + _NO_PROXY + _UNARY_OPTIONS + _OWN_CONNECTION + balanced
    return _open(target, options, tls, service)


def _open(target: str, options: Options, tls: PeerTls | None, service: str) -> grpc.aio.Channel:
    if tls := tls or peer_tls.of_process():
        return RenewedChannel(target, options, tls, service)
    return grpc.aio.insecure_channel(target, options=options)


async def call(method: Any, request: Any, *, deadline_s: float) -> Any:
    """Make one unary call, within `deadline_s` seconds from now.

    Raises the BatonError that the peer raised, Unavailable when no peer can be reached,
    DeadlineExceeded.
    """
    if deadline_s <= 0:
        raise failures.DeadlineExceeded("the deadline passed before the call")
    try:
        return await method(request, timeout=deadline_s, metadata=outgoing())
    except grpc.aio.AioRpcError as error:
        raise failure_of(error) from error


def outgoing() -> tuple[tuple[str, str], ...]:
    """The metadata of a call or stream."""
    return ((metadata.PROTOCOL, str(PROTOCOL_VERSION)),)


def is_unanswered(error: _Failed) -> bool:
    """No peer took the call: a peer's own refusal carries a Failure."""
    keys = {key for key, _ in error.trailing_metadata() or ()}
    return _is_gone(error) and metadata.FAILURE not in keys


def _is_gone(error: _Failed) -> bool:
    return error.code() in _GONE or error.details() == _CORE_ERROR


def failure_of(error: _Failed) -> failures.BatonError:
    """The BatonError that a failed call stands for."""
    for key, value in error.trailing_metadata() or ():
        if key == metadata.FAILURE:
            return failures.from_wire(failure_pb2.Failure.FromString(value))
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return failures.DeadlineExceeded(details or "deadline exceeded")
    if _is_gone(error) or code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return failures.Unavailable(details or "unavailable", retry_after_s=1)
    return failures.InternalFailure(f"{code.name}: {details}")
