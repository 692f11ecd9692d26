"""What a pick has given away."""

from typing import NamedTuple

from baton.wire.v1 import router_pb2
from services.router.fleet.worker import SlotLease
from services.router.pick.on_the_way import SentMarks


class Placement(NamedTuple):
    """A pick, the seconds of the engines that its request is predicted to take, the leases of its
    workers by their ids, and its prompt if it is new to its worker."""

    response: router_pb2.PickResponse
    engine_s: float
    leases: list[tuple[str, SlotLease]]
    sent: SentMarks | None
