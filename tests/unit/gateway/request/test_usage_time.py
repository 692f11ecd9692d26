"""What a request cost on the engines, and what of it was wasted."""

from types import SimpleNamespace
from typing import Any

from baton.wire.v1.failure_pb2 import EngineTime
from services.gateway.request.trace import RequestUsage


def usage(
    num_tokens: int = 10, num_received: int = 10, reason: str | None = "stop"
) -> RequestUsage:
    choice: Any = SimpleNamespace(num_tokens=num_tokens, finish_reason=reason, is_unpaid=False)
    return RequestUsage(choices=[choice], num_received=num_received)


def spent(prefill_us: int, decode_us: int, preempted_us: int = 0) -> EngineTime:
    return EngineTime(
        prefill_us=prefill_us, decode_us=decode_us, preempted_us=preempted_us, kv_byte_ms=7
    )


def wasted(engine: EngineTime) -> tuple[int, int, int]:
    return engine.cancelled_us, engine.migrated_us, engine.preempted_us


def test_a_request_that_goes_well_wastes_nothing() -> None:
    request = usage()
    request.took_time(spent(300, 700), 10, has_failed=False)
    engine = request.engine_time("stop")
    assert (engine.prefill_us, engine.decode_us, engine.kv_byte_ms) == (300, 700, 7)
    assert wasted(engine) == (0, 0, 0)


def test_what_a_preemption_took_is_wasted() -> None:
    request = usage()
    request.took_time(spent(300, 700, preempted_us=100), 10, has_failed=False)
    assert wasted(request.engine_time("stop")) == (0, 0, 100)


def test_the_prefill_of_an_attempt_that_failed_has_to_be_done_again() -> None:
    request = usage()
    request.took_time(spent(300, 400, preempted_us=50), 6, has_failed=True)
    request.took_time(spent(350, 300), 4, has_failed=False)
    engine = request.engine_time("stop")
    assert (engine.prefill_us, engine.decode_us, engine.kv_byte_ms) == (650, 700, 14)
    assert wasted(engine) == (0, 250, 50)


def test_an_attempt_that_failed_before_its_first_token_is_wasted_whole() -> None:
    request = usage()
    request.took_time(spent(300, 40), 0, has_failed=True)
    request.took_time(spent(350, 300), 10, has_failed=False)
    assert wasted(request.engine_time("stop")) == (0, 340, 0)


def test_an_answer_that_did_not_come_to_its_end_is_wasted_and_nothing_of_it_twice() -> None:
    request = usage(reason=None)
    request.took_time(spent(300, 40, preempted_us=10), 0, has_failed=True)
    request.took_time(spent(350, 300), 10, has_failed=False)
    engine = request.engine_time("cancelled")
    assert wasted(engine) == (650, 330, 10)
    assert sum(wasted(engine)) == engine.prefill_us + engine.decode_us


def test_tokens_behind_the_end_of_an_answer_are_wasted() -> None:
    request = usage(num_tokens=8, num_received=10)
    request.took_time(spent(300, 1000), 10, has_failed=False)
    assert wasted(request.engine_time("stop")) == (200, 0, 0)


def test_a_request_that_no_worker_saw_costs_nothing() -> None:
    assert RequestUsage().engine_time("") == EngineTime()
