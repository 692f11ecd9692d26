"""What the end of a call tells of its peer."""

import grpc
import pytest

from baton.runtime.grpc_channel import failure_of, is_unanswered
from baton.wire.failures import InternalFailure, Unavailable

NOTHING = grpc.aio.Metadata()


def ended(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, NOTHING, NOTHING, details)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        # Of grpc.aio itself, when a connection ends while a call on it begins.
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
    ],
)
def test_a_call_whose_peer_is_gone_may_be_made_again(code: grpc.StatusCode, details: str) -> None:
    error = ended(code, details)
    assert is_unanswered(error)
    assert isinstance(failure_of(error), Unavailable)


def test_a_peer_that_fails_has_answered() -> None:
    error = ended(grpc.StatusCode.INTERNAL, "a bug")
    assert not is_unanswered(error)
    assert isinstance(failure_of(error), InternalFailure)
