"""Shared calls in virtual time, over streams in memory to replicas that take turns."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from baton.runtime.calls.call_server import CallServer, IncomingCall
from baton.runtime.calls.call_stream import Unanswered
from baton.runtime.calls.shared_calls import AVOID_S, CallTerms, SharedCalls, Silent
from baton.runtime.cutoff import Cutoff
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.call_methods import PICK, RESERVE, SETTLE
from baton.wire.failures import DeadlineExceeded, Incompatible, InternalFailure, Unavailable
from baton.wire.v1 import quota_pb2, router_pb2

TERMS = CallTerms(60.0)


class AnswerEnd(MemoryStream):
    """The caller's end of a stream in memory."""

    failure = Unanswered("cut")


class Replica:
    """Grants what is asked for, after `takes_s`, and counts."""

    def __init__(self) -> None:
        self.takes_s = self.greets_after_s = 0.0
        self.failure: BaseException | None = None
        self.num_calls = self.num_cancelled = self.num_frames = 0
        self.is_away = False
        self.leaving = Cutoff()
        self.server = CallServer({RESERVE: self.reserve}, self.leaving)
        self.serving: set[asyncio.Task[None]] = set()
        self.streams: list[MemoryStream] = []

    async def reserve(
        self, request: quota_pb2.ReserveRequest, call: IncomingCall
    ) -> quota_pb2.ReserveResponse:
        self.num_calls += 1
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        return quota_pb2.ReserveResponse(granted_output_tokens=request.num_output_tokens)

    def open(self) -> MemoryStream:
        ours, theirs = memory_stream_pair()
        ours.__class__ = AnswerEnd
        if self.is_away:
            theirs.cancel()
        else:
            task = asyncio.create_task(self._serve(theirs))
            self.serving.add(task)
            self.streams.append(ours)
        return ours

    async def _serve(self, stream: MemoryStream) -> None:
        await asyncio.sleep(self.greets_after_s)
        await self.server.serve(stream)

    def die(self) -> None:
        self.is_away = True
        for stream in self.streams:
            stream.cancel()


class Fleet:
    """Replicas to which streams go in turn, and the calls to them."""

    def __init__(self, clock: VirtualClock, num_replicas: int = 1) -> None:
        self.replicas = [Replica() for _ in range(num_replicas)]
        self.clock = clock
        self.num_opened = 0
        self.calls = SharedCalls(self._open, clock, is_balanced=num_replicas > 1)

    async def reserve(self, num: int = 1, terms: CallTerms = TERMS) -> int:
        request = quota_pb2.ReserveRequest(num_output_tokens=num)
        return (await self.calls.call(RESERVE, request, terms)).granted_output_tokens

    def _open(self) -> Any:
        present = [each for each in self.replicas if not each.is_away] or self.replicas
        self.num_opened += 1
        return present[self.num_opened % len(present)].open()

    async def close(self) -> None:
        await self.calls.close()
        for replica in self.replicas:
            await asyncio.gather(*replica.serving, return_exceptions=True)


def with_fleet(num_replicas: int, scenario: Callable[[Fleet], Awaitable[None]]) -> None:
    clock = VirtualClock()

    async def main() -> None:
        fleet = Fleet(clock, num_replicas)
        await scenario(fleet)
        await fleet.close()

    run_virtual(main(), clock)


@contextmanager
def refused(kind: type[Exception]) -> Iterator[None]:
    with pytest.raises(kind):
        yield


def test_answers_find_their_callers_in_any_order_over_one_stream() -> None:
    async def scenario(fleet: Fleet) -> None:
        assert await asyncio.gather(*map(fleet.reserve, range(1, 50))) == list(range(1, 50))
        assert fleet.num_opened == 1
        # All calls of a turn of the loop left in one frame.
        (stream,) = fleet.replicas[0].streams
        assert stream.num_written == 1

    with_fleet(1, scenario)


def test_a_caller_that_leaves_cancels_its_call_and_no_other() -> None:
    async def scenario(fleet: Fleet) -> None:
        replica = fleet.replicas[0]
        replica.takes_s = 5.0
        staying, leaving = (asyncio.create_task(fleet.reserve()) for _ in range(2))
        await asyncio.sleep(1)
        leaving.cancel()
        assert await staying == 1
        assert (replica.num_calls, replica.num_cancelled) == (2, 1)

    with_fleet(1, scenario)


def test_a_call_ends_with_its_time_or_with_the_time_for_silence() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.replicas[0].takes_s = 5.0
        with refused(DeadlineExceeded):
            await fleet.reserve(terms=CallTerms(1.0, silence_s=2.0))
        with refused(Silent):
            await fleet.reserve(terms=CallTerms(2.0, silence_s=1.0))
        with refused(DeadlineExceeded):
            await fleet.reserve(terms=CallTerms(0.0))
        await asyncio.sleep(0.1)
        assert fleet.replicas[0].num_cancelled == 2

    with_fleet(1, scenario)


def test_a_caller_that_stood_still_looks_for_the_answer_before_it_gives_up() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.reserve()
        fleet.replicas[0].takes_s = 0.05
        call = asyncio.create_task(fleet.reserve(terms=CallTerms(1.0, silence_s=0.1)))
        await asyncio.sleep(0.01)
        # Nothing runs meanwhile, as in a long computation.
        fleet.clock.advance(0.2)
        assert await call == 1

    with_fleet(1, scenario)


def test_a_lost_stream_fails_its_calls_and_the_next_call_opens_another() -> None:
    async def scenario(fleet: Fleet) -> None:
        replica = fleet.replicas[0]
        replica.takes_s = 5.0
        open_calls = [asyncio.create_task(fleet.reserve()) for _ in range(3)]
        await asyncio.sleep(1)
        replica.streams[0].cancel()
        for each in await asyncio.gather(*open_calls, return_exceptions=True):
            assert isinstance(each, Unavailable)
        assert replica.num_cancelled == 3
        assert await fleet.reserve(7) == 7

    with_fleet(1, scenario)


def test_a_patient_call_waits_for_a_replica_that_comes_back() -> None:
    async def scenario(fleet: Fleet) -> None:
        replica = fleet.replicas[0]
        replica.is_away = True
        with refused(Unavailable):
            await fleet.reserve(terms=CallTerms(60.0, patience_s=1.0))
        waiting = asyncio.create_task(fleet.reserve(terms=CallTerms(60.0, patience_s=10.0)))
        await asyncio.sleep(5)
        replica.is_away = False
        assert await waiting == 1

    with_fleet(1, scenario)


def test_every_replica_is_found_and_gets_its_share_over_one_stream() -> None:
    async def scenario(fleet: Fleet) -> None:
        for _ in range(60):
            await asyncio.gather(*(fleet.reserve() for _ in range(3)))
            await asyncio.sleep(0.1)
        counts = [replica.num_calls for replica in fleet.replicas]
        assert min(counts) >= 45
        # One stream each, and a few looks for more of them.
        assert fleet.num_opened <= 3 + 8

    with_fleet(3, scenario)


def test_the_calls_of_a_replica_that_dies_are_answered_by_the_others() -> None:
    async def scenario(fleet: Fleet) -> None:
        for replica in fleet.replicas:
            replica.takes_s = 0.5
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        await fleet.reserve()
        answers = [asyncio.create_task(fleet.reserve()) for _ in range(10)]
        await asyncio.sleep(0.1)
        fleet.replicas[0].die()
        assert await asyncio.gather(*answers) == [1] * 10
        fleet.replicas[0].is_away = False
        for _ in range(10):
            await fleet.reserve()
        before = fleet.replicas[0].num_calls
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        assert fleet.replicas[0].num_calls > before

    with_fleet(2, scenario)


def test_a_replica_that_leaves_answers_what_it_has_and_gets_nothing_new() -> None:
    async def scenario(fleet: Fleet) -> None:
        for replica in fleet.replicas:
            replica.takes_s = 1.0
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        await fleet.reserve()
        open_calls = [asyncio.create_task(fleet.reserve()) for _ in range(10)]
        await asyncio.sleep(0.1)
        leaving = fleet.replicas[0]
        leaving.leaving.now()
        leaving.is_away = True
        before = leaving.num_calls
        assert before > 1
        assert await asyncio.gather(*open_calls) == [1] * 10
        for _ in range(5):
            await fleet.reserve()
        assert (leaving.num_calls, leaving.num_cancelled) == (before, 0)
        await asyncio.wait(leaving.serving, timeout=1)
        assert all(task.done() for task in leaving.serving)

    with_fleet(2, scenario)


def test_a_refusal_as_unavailable_is_made_again_at_another_replica_a_few_times() -> None:
    async def scenario(fleet: Fleet) -> None:
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        await fleet.reserve()
        fleet.replicas[0].failure = Unavailable("not loaded yet", reason="no_tokenizer")
        for _ in range(6):
            assert await fleet.reserve() == 1
        fleet.replicas[1].failure = fleet.replicas[0].failure
        before = sum(replica.num_calls for replica in fleet.replicas)
        for _ in range(200):
            with refused(Unavailable):
                await fleet.reserve()
        # An outage of the whole service does not multiply its calls.
        assert sum(replica.num_calls for replica in fleet.replicas) - before < 260

    with_fleet(2, scenario)


def test_a_replica_that_refuses_quickly_does_not_draw_the_calls_of_those_that_work() -> None:
    async def scenario(fleet: Fleet) -> None:
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        await fleet.reserve()
        refusing, working = fleet.replicas
        refusing.failure = Unavailable("not loaded yet", reason="no_tokenizer")
        working.takes_s = 0.5
        before = refusing.num_calls
        # The one that works has always open calls, the other one never.
        for _ in range(30):
            assert await asyncio.gather(*(fleet.reserve() for _ in range(8))) == [1] * 8
        assert refusing.num_calls - before < 80
        refusing.failure = None
        await asyncio.sleep(AVOID_S)
        before = refusing.num_calls
        await asyncio.gather(*(fleet.reserve() for _ in range(8)))
        assert refusing.num_calls - before > 2

    with_fleet(2, scenario)


def test_one_replica_that_refuses_for_long_costs_no_call_while_another_answers() -> None:
    async def scenario(fleet: Fleet) -> None:
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        await fleet.reserve()
        refusing = fleet.replicas[0]
        refusing.failure = Unavailable("not loaded yet", reason="no_tokenizer")
        before = refusing.num_calls
        for _ in range(200):
            await asyncio.sleep(AVOID_S)
            assert await fleet.reserve() == 1
        assert refusing.num_calls - before > 60

    with_fleet(2, scenario)


def test_a_call_that_met_silence_is_made_again_at_another_replica() -> None:
    async def scenario(fleet: Fleet) -> None:
        await asyncio.gather(*(fleet.reserve() for _ in range(4)))
        await fleet.reserve()
        hung, working = fleet.replicas
        working.takes_s = 3.0
        open_calls = [asyncio.create_task(fleet.reserve()) for _ in range(8)]
        await asyncio.sleep(0.1)
        hung.takes_s = 50.0
        # It has no open call, and would be chosen again.
        with refused(Silent):
            await fleet.reserve(terms=CallTerms(60.0, silence_s=1.0))
        assert await fleet.reserve(terms=CallTerms(5.0)) == 1
        await asyncio.gather(*open_calls)

    with_fleet(2, scenario)


def test_a_handler_that_is_cancelled_from_within_has_an_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.replicas[0].failure = asyncio.CancelledError()
        with refused(Unavailable):
            await fleet.reserve()
        fleet.replicas[0].failure = None
        assert await fleet.reserve(3) == 3

    with_fleet(1, scenario)


def test_a_replica_that_two_streams_found_at_once_keeps_one() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.reserve()
        found, lost = fleet.replicas
        found.greets_after_s = 1.0
        # A look for another replica, which is under way when the only stream is lost.
        await fleet.reserve()
        lost.die()
        await asyncio.sleep(0.1)
        assert await fleet.reserve() == 1
        await asyncio.sleep(2)
        assert sum(not task.done() for task in found.serving) == 1

    with_fleet(2, scenario)


def test_a_service_that_is_left_keeps_no_stream_without_calls() -> None:
    async def scenario(fleet: Fleet) -> None:
        replica = fleet.replicas[0]
        replica.takes_s = 1.0
        call = asyncio.create_task(fleet.reserve(terms=CallTerms(60.0, patience_s=10.0)))
        await asyncio.sleep(0.5)
        fleet.calls.leave()
        replica.streams[0].cancel()
        assert await call == 1
        assert fleet.num_opened == 2
        await asyncio.wait(replica.serving, timeout=1)
        assert all(task.done() for task in replica.serving)

    with_fleet(1, scenario)


def test_a_bug_and_an_unknown_method_are_failures_of_one_call_only() -> None:
    async def scenario(fleet: Fleet) -> None:
        with refused(Incompatible):
            await fleet.calls.call(SETTLE, quota_pb2.SettleRequest(), TERMS)
        with refused(Incompatible):
            await fleet.calls.call(PICK, router_pb2.PickRequest(), TERMS)
        fleet.replicas[0].failure = ZeroDivisionError("secret")
        with pytest.raises(InternalFailure, match="ZeroDivisionError") as failed:
            await fleet.reserve()
        assert "secret" not in failed.value.message
        fleet.replicas[0].failure = None
        assert await fleet.reserve(3) == 3
        assert fleet.num_opened == 1

    with_fleet(1, scenario)
