import pytest

from baton.handoff.negotiation import Transport, Transports
from baton.handoff.transport import TransportFailed
from baton.handoff.transports.grpc_stream import GrpcReceiver, GrpcSender, GrpcTransport
from baton.wire.failures import Incompatible
from baton.wire.v1 import handoff_pb2
from tests.unit.handoff.conftest import make_pair


def plain() -> GrpcTransport:
    return GrpcTransport(make_pair(1).receiver._blocks)


class Named(GrpcTransport):
    """A transport of another name, which may fail."""

    def __init__(self, name: str, fails_at: str = "") -> None:
        super().__init__(make_pair(1).receiver._blocks)
        self.name = name
        self.fails_at = fails_at
        self.is_closed = False

    def offer(self, hello: handoff_pb2.DecodeHello) -> "Named":
        self._fail("offer")
        return self

    def connect(self, answer: handoff_pb2.PrefillHello) -> GrpcReceiver:
        self._fail("connect")
        return super().connect(answer)

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> GrpcSender:
        self._fail("accept")
        return super().accept(hello, answer)

    def close(self) -> None:
        self.is_closed = True

    def _fail(self, place: str) -> None:
        if place == self.fails_at:
            raise TransportFailed(place)


def agree(ours: list[Transport], theirs: list[Transport], *, only_plain: bool = False) -> str:
    """What a decode worker with `ours` and a prefill worker with `theirs` use."""
    hello, answer = handoff_pb2.DecodeHello(), handoff_pb2.PrefillHello()
    with Transports(ours).offer(hello, only_plain=only_plain) as offer:
        Transports(theirs).accept(hello, answer)
        offer.connect(answer)
    return answer.transport


def test_the_prefill_workers_first_that_is_offered_is_taken() -> None:
    assert agree([plain(), Named("shm")], [Named("nixl"), Named("shm"), plain()]) == "shm"


def test_what_cannot_be_set_up_on_either_side_gives_way_to_the_next() -> None:
    assert agree([Named("shm", "offer"), plain()], [Named("shm"), plain()]) == "grpc"
    assert agree([Named("shm"), plain()], [Named("shm", "accept"), plain()]) == "grpc"


def test_after_a_failure_only_the_plain_transport_is_offered() -> None:
    assert agree([Named("shm"), plain()], [Named("shm"), plain()], only_plain=True) == "grpc"


def test_an_offer_is_closed_whatever_was_chosen() -> None:
    ours = Named("shm")
    agree([ours, plain()], [plain()])
    assert ours.is_closed

    ours = Named("shm", "connect")
    with pytest.raises(TransportFailed):
        agree([ours], [Named("shm")])
    assert ours.is_closed


def test_no_common_transport_is_refused_naming_both_lists() -> None:
    with pytest.raises(Incompatible, match="grpc here, nixl there"):
        agree([Named("nixl")], [plain()])


def test_an_answer_that_was_not_offered_is_refused() -> None:
    with Transports([plain()]).offer(handoff_pb2.DecodeHello()) as offer:
        answer = handoff_pb2.PrefillHello(worker_id="prefill-1", transport="nixl")
        with pytest.raises(Incompatible, match="'nixl' of prefill-1 is none of grpc here"):
            offer.connect(answer)
