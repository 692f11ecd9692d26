import pytest

from baton.handoff.transport import choose_transport
from baton.wire.failures import Incompatible


def test_our_first_choice_that_the_peer_offers_is_taken() -> None:
    assert choose_transport(["shm", "grpc"], ["nixl", "grpc", "shm"]) == "shm"


def test_no_common_transport_is_refused_naming_both_lists() -> None:
    with pytest.raises(Incompatible, match="grpc here, nixl there"):
        choose_transport(["grpc"], ["nixl"])
