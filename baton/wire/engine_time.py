"""What requests cost on the engines, as it travels: parts of it are added up on the way."""

from baton.wire.v1.failure_pb2 import EngineTime


def add_time(total: EngineTime, part: EngineTime) -> None:
    """Add what a worker reports to a total."""
    total.prefill_us += part.prefill_us
    total.decode_us += part.decode_us
    total.kv_byte_ms += part.kv_byte_ms
    total.preempted_us += part.preempted_us
