"""The failure of a request whose sequence the engine refused or ended."""

from baton.wire import failures
from baton.wire.v1 import failure_pb2


def sequence_failure(reason: str, message: str) -> failures.BatonError:
    """`reason` is the engine's; an unknown one is `internal`."""
    failure = failure_pb2.Failure(reason=reason, message=message)
    if reason == "invalid_grammar":
        failure.param = "response_format"
        failure.message = f"response_format: {message}"
    return failures.from_wire(failure)
