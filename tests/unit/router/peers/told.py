"""The news that a peer tells of its picks."""

from typing import Any

from baton.wire.v1 import peers_pb2
from services.router.fleet.worker import SlotLease
from services.router.peers.placements import PlacedRequest, columns_of
from services.router.queue.fair_line import ANYBODY
from tests.unit.router.conftest import MODEL


def placed(request_id: str = "p", *worker_ids: str, **changes: Any) -> PlacedRequest:
    """A request of a peer; its decode worker is named first."""
    lease = SlotLease(request_id, 1, 1, 0, 0.0)
    leases = [(worker_id, lease) for worker_id in worker_ids or ("elsewhere",)]
    request = PlacedRequest(request_id, MODEL, b"", ANYBODY, 0.0, False, leases, (), 0.0)
    return request._replace(**changes)


def news_of(*requests: PlacedRequest) -> peers_pb2.PeerNews:
    return peers_pb2.PeerNews(events=[peers_pb2.PeerEvent(placed=columns_of(requests))])
