import grpc
import pytest

from baton.wire import failures
from baton.wire.failures import REASONS, BatonError, LimitExceeded, Unavailable
from baton.wire.v1 import failure_pb2


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_survives_the_wire(reason: str) -> None:
    sent = failures.from_wire(failure_pb2.Failure(reason=reason, message="m", param="p"))
    again = failures.from_wire(failures.to_wire(sent))
    assert (again.reason, again.message, again.param) == (reason, "m", "p")
    assert again.row is REASONS[reason]


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_names_a_real_grpc_code(reason: str) -> None:
    assert grpc.StatusCode[REASONS[reason].grpc_code]


def test_unknown_reason_of_a_newer_peer_becomes_internal() -> None:
    error = failures.from_wire(failure_pb2.Failure(reason="from_the_future", message="m"))
    assert error.reason == "internal"


def test_limit_state_and_retry_time_survive_the_wire() -> None:
    state = failure_pb2.LimitState(limit_requests=3, reset_tokens_ms=12)
    error = LimitExceeded("slow down", retry_after_s=1.5, limits=state)
    again = failures.from_wire(failures.to_wire(error))
    assert isinstance(again, LimitExceeded)
    assert again.limits == state
    assert again.retry_after_s == 1.5


def test_class_of_a_reason_is_found_again() -> None:
    error = failures.from_wire(failures.to_wire(Unavailable("gone", reason="worker_lost")))
    assert isinstance(error, Unavailable)


def test_an_unlisted_reason_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        BatonError("x", reason="nonsense")


def test_quoted_values_are_cut() -> None:
    assert len(failures.quoted("x" * 1000)) < 80
