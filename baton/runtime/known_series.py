"""Which labels of the counters are known beforehand: each service begins with their series at 0.

`rate` and `increase` see only what a series grows by, so that the event with which a series begins
would be missed: by alerts on rare events the only one there is. Here are the closed sets; labels
that name models, tenants or checks begin when there are any.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Counter

from baton.runtime import instruments as i
from baton.wire.failures import REASONS

Series = Mapping[Counter, Iterable[tuple[str, ...]]]

# What an attempt may fail with and be tried again (services/gateway/answering.py).
_RETRIED = (
    "no_room", "prefill_refused", "worker_lost", "draining", "unavailable", "handoff_failed",
)  # fmt: skip
_TRANSPORTS = ("shm", "nixl", "grpc")
_STORE_CALLS = (
    "reserve", "renew", "settle", "reap", "pipeline",
    "DEL", "EXISTS", "GET", "PEXPIRE", "SADD", "SET", "SMEMBERS", "XDEL", "XRANGE",
)  # fmt: skip
_RESERVATIONS = (
    "granted", "requests", "tokens", "concurrency", "budget", "exceeds_tokens", "unknown_key",
    "revoked_key", "used_request_id",
)  # fmt: skip


def _pairs(first: str, second: Iterable[str]) -> list[tuple[str, ...]]:
    return [(first, value) for value in second]


def _each(*values: str) -> list[tuple[str, ...]]:
    return [(value,) for value in values]


OF_ALL: Series = {i.SPANS_DROPPED: _each("queue_full", "not_exported")}
# By the name that a service gives to `process.run`.
OF_SERVICE: Mapping[str, Series] = {
    "gateway": {
        i.GATEWAY_REFUSED_REQUESTS: [
            (reason, str(row.http_status)) for reason, row in REASONS.items()
        ],
        i.GATEWAY_REPEATED_PICKS: _each(*_RETRIED),
        i.GATEWAY_MOVES: _each(*_RETRIED),
        i.GATEWAY_LOST_STREAMS: _each("resumed", "given_up"),
        i.GATEWAY_DROPPED_ENTRIES: _each("over", "repeat", "gap"),
    },
    "quota": {
        i.QUOTA_RESERVATIONS: _each(*_RESERVATIONS),
        i.QUOTA_RENEWALS: _each("held", "refused", "lost", "unknown_key"),
        i.QUOTA_SETTLES: _each("settled", "repeated", "unknown", "unknown_key"),
        i.QUOTA_STORE_FAILURES: _each(*_STORE_CALLS),
        i.QUOTA_REGISTRY_LOADS: _each("loaded", "unusable"),
        i.QUOTA_ARCHIVED_RECORDS: _each("written", "repeated", "rejected"),
    },
    "router": {i.ROUTER_REPORTS_DROPPED: _each("repeat", "gap")},
    "decode_worker": {
        i.HANDOFF_BLOCKS: _each("received"),
        i.HANDOFF_BYTES: _pairs("received", _TRANSPORTS),
        i.HANDOFF_TRANSFERS: _pairs("received", ("complete", "aborted")),
        i.HANDOFF_BAD_BLOCKS: _each(
            "checksum", "transport", "size", "payload", "layer", "heads", "range", "count"
        ),
        i.HANDOFF_DROPPED_FRAMES: _each("transfer", "epoch", "capability", "unknown"),
        i.HANDOFF_LINKS: _each(*_TRANSPORTS),
        i.HANDOFF_FALLBACKS: _each(*_TRANSPORTS),
        i.DECODE_PARKED_GATEWAYS: _each("resumed", "expired"),
    },
    "prefill_worker": {
        i.HANDOFF_BLOCKS: _each("sent"),
        i.HANDOFF_BYTES: _pairs("sent", _TRANSPORTS),
        i.HANDOFF_TRANSFERS: _pairs(
            "sent", ("complete", "aborted", "refused", "failed", "lost", "expired")
        ),
        i.HANDOFF_DROPPED_FRAMES: _each("transfer", "epoch", "capability", "repeat", "unknown"),
        i.HANDOFF_LINKS: _each(*_TRANSPORTS),
    },
    "edge": {
        i.EDGE_REFUSED_CONFIGS: _each("Cluster", "ClusterLoadAssignment", "Listener", "Secret")
    },
}


def begin(service: str) -> None:
    """Let the counters of a service, and of all, begin at 0."""
    for series in (OF_ALL, OF_SERVICE.get(service, {})):
        for counter, labels in series.items():
            for values in labels:
                counter.labels(*values)
