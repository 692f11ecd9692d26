import asyncio
import operator

import pytest

from baton.testing.virtual_clock import VirtualClock, VirtualLoop, run_virtual
from baton.wire.failures import ModelNotFound, Overloaded, Unavailable
from services.router.queue.fair_line import ANYBODY
from services.router.queue.queue import MAX_IN_VAIN, PACE_S, RETRY_S, RequestQueue, WaitedTooLong


class Room:
    """Grants as many results as there are slots; counts attempts."""

    def __init__(self, slots: int = 0) -> None:
        self.slots = slots
        self.num_attempts = 0
        self.was_first = False

    def attempt(self, is_first: bool) -> str | None:
        self.num_attempts += 1
        self.was_first = is_first
        if self.slots == 0:
            return None
        self.slots -= 1
        return "granted"


class Gone(Room):
    """Refuses instead of granting."""

    def attempt(self, is_first: bool) -> str | None:
        if super().attempt(is_first):
            raise ModelNotFound("gone")
        return None


Queue = RequestQueue[Room, str]


def queue_of(max_queued: int) -> Queue:
    """A queue on the running loop's clock; a waiter covers those that want the same room."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    def admit(room: Room) -> None:
        if len(queue.line) >= max_queued:
            raise Overloaded("full", retry_after_s=1)

    queue = Queue(attempt, operator.is_, admit, loop.clock)
    return queue


def attempt(room: Room, is_first: bool) -> str | None:
    return room.attempt(is_first)


def admit_all(room: Room) -> None:
    """Refuse nothing."""


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_empty_queue_grants_at_once() -> None:
    async def scenario() -> None:
        assert await queue_of(10).wait(Room(1), 0.0) == "granted"

    run_virtual(scenario())


def test_waiters_are_served_in_order_of_arrival() -> None:
    async def scenario() -> list[int]:
        queue, room, served = queue_of(10), Room(), []

        async def one(number: int) -> None:
            await queue.wait(room, 10)
            served.append(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(one(number))
            await settle()
            for _ in range(3):
                room.slots += 1
                queue.pump()
                await settle()
        return served

    assert run_virtual(scenario()) == [0, 1, 2]


def test_no_request_overtakes_one_that_needs_as_little() -> None:
    async def scenario() -> None:
        queue, never, room = queue_of(10), Room(), Room()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(queue.wait(each, 10)) for each in (never, room)]
            await settle()
            later = tasks.create_task(queue.wait(room, 10))
            await settle()
            room.slots = 1
            await asyncio.sleep(RETRY_S)
            assert waiting[1].done()
            assert not later.done()
            waiting[0].cancel()
            later.cancel()

    run_virtual(scenario())


def test_a_request_that_needs_less_than_all_before_it_passes_at_once_and_in_the_line() -> None:
    async def scenario() -> None:
        queue, never, room = queue_of(10), Room(), Room(1)
        async with asyncio.TaskGroup() as tasks:
            head = tasks.create_task(queue.wait(never, 10))
            await settle()
            assert await queue.wait(room, 10) == "granted"
            second = tasks.create_task(queue.wait(room, 10))
            await settle()
            assert not second.done()
            room.slots = 1
            await asyncio.sleep(RETRY_S)
            assert second.done()
            assert never.was_first
            assert not room.was_first
            head.cancel()

    run_virtual(scenario())


def test_a_new_request_is_not_first_while_a_stream_that_has_begun_waits() -> None:
    async def scenario() -> None:
        queue, never, room = queue_of(10), Room(), Room(1)
        async with asyncio.TaskGroup() as tasks:
            begun = tasks.create_task(queue.wait(never, 10, has_begun=True))
            await settle()
            assert await queue.wait(room, 10) == "granted"
            assert never.was_first
            assert not room.was_first
            begun.cancel()

    run_virtual(scenario())


def test_a_stream_that_has_begun_is_first_while_only_new_requests_wait() -> None:
    async def scenario() -> None:
        queue, never, room = queue_of(10), Room(), Room(1)
        async with asyncio.TaskGroup() as tasks:
            new = tasks.create_task(queue.wait(never, 10))
            await settle()
            assert await queue.wait(room, 10, has_begun=True) == "granted"
            assert room.was_first
            new.cancel()

    run_virtual(scenario())


def test_the_next_in_line_is_first_when_the_first_has_left() -> None:
    async def scenario() -> None:
        queue, never, room = queue_of(10), Room(), Room()
        async with asyncio.TaskGroup() as tasks:
            head = tasks.create_task(queue.wait(never, 10))
            await settle()
            second = tasks.create_task(queue.wait(room, 10))
            await settle()
            room.slots = 1
            head.cancel()
            await settle()
            assert second.done()
            assert room.was_first

    run_virtual(scenario())


class LaggingClock:
    """A clock by which every timer of the loop fires a tenth too early."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return 0.9 * self._clock.now()

    def unix(self) -> float:
        return self._clock.unix()


def test_a_timer_that_fires_early_is_set_again_for_what_is_left() -> None:
    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        queue = Queue(attempt, operator.is_, admit_all, LaggingClock(loop.clock))
        first, second = Room(), Room()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(queue.wait(room, 10)) for room in (first, second)]
            await asyncio.sleep(1)
            for task in waiting:
                task.cancel()
        return second.num_attempts

    num_turns = 0.9 / RETRY_S
    assert num_turns - 1 <= run_virtual(scenario()) <= num_turns + 2


def test_a_storm_of_changes_does_not_try_the_whole_line_each_time() -> None:
    async def scenario() -> None:
        queue = queue_of(1000)
        rooms = [Room() for _ in range(100)]
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(queue.wait(room, 10)) for room in rooms]
            await settle()
            num_before = sum(room.num_attempts for room in rooms)
            for _ in range(1000):
                queue.notify()
                await asyncio.sleep(0.001)
            num_attempts = sum(room.num_attempts for room in rooms) - num_before
            assert num_attempts <= 1.0 / PACE_S + (MAX_IN_VAIN - 1) / RETRY_S + MAX_IN_VAIN
            for task in waiting:
                task.cancel()

    run_virtual(scenario())


def test_streams_that_have_begun_go_before_requests_that_have_not() -> None:
    async def scenario() -> list[str]:
        queue, room, served = queue_of(10), Room(), []

        async def one(name: str, has_begun: bool) -> None:
            await queue.wait(room, 10, has_begun=has_begun)
            served.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name in ("new-1", "new-2", "begun-1", "begun-2"):
                tasks.create_task(one(name, name.startswith("begun")))
                await settle()
            for _ in range(4):
                room.slots += 1
                queue.pump()
                await settle()
        return served

    assert run_virtual(scenario()) == ["begun-1", "begun-2", "new-1", "new-2"]


def test_room_that_comes_back_by_time_alone_is_found() -> None:
    async def scenario() -> float:
        queue, room = queue_of(10), Room()
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, setattr, room, "slots", 1)
        await queue.wait(room, 10)
        return loop.time()

    assert 1.0 <= run_virtual(scenario()) <= 1.0 + 2 * RETRY_S


def test_a_waiter_leaves_when_its_time_is_over() -> None:
    async def scenario() -> None:
        queue = queue_of(10)
        with pytest.raises(WaitedTooLong):
            await queue.wait(Room(), 3.0)
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert len(queue) == 0

    run_virtual(scenario())


def test_a_request_that_is_not_admitted_does_not_join_the_line() -> None:
    async def scenario() -> None:
        queue, room = queue_of(1), Room()
        first = asyncio.create_task(queue.wait(room, 10))
        await settle()
        room.slots = 1
        with pytest.raises(Overloaded):
            await queue.wait(room, 10)
        assert len(queue) == 1
        first.cancel()

    run_virtual(scenario())


def test_an_attempt_that_fails_refuses_its_waiter_and_not_the_next() -> None:
    async def scenario() -> None:
        queue, failing, room = queue_of(10), Gone(), Room()
        first = asyncio.create_task(queue.wait(failing, 10))
        await settle()
        second = asyncio.create_task(queue.wait(room, 10))
        await settle()
        failing.slots = room.slots = 1
        queue.pump()
        with pytest.raises(ModelNotFound):
            await first
        assert await second == "granted"

    run_virtual(scenario())


def test_a_waiter_cancelled_before_its_turn_takes_nothing() -> None:
    async def scenario() -> None:
        queue, room = queue_of(10), Room()
        waiter = asyncio.create_task(queue.wait(room, 10))
        await settle()
        waiter.cancel()
        room.slots = 1
        queue.pump()
        assert room.slots == 1
        assert len(queue) == 0
        with pytest.raises(asyncio.CancelledError):
            await waiter

    run_virtual(scenario())


def test_closing_refuses_all_that_wait() -> None:
    async def scenario() -> None:
        queue = queue_of(10)
        waiters = [asyncio.create_task(queue.wait(Room(), 10)) for _ in range(3)]
        await settle()
        queue.refuse_all("stopping")
        for waiter in waiters:
            with pytest.raises(Unavailable):
                await waiter

    run_virtual(scenario())


def test_the_predicted_wait_follows_the_pace_of_grants() -> None:
    async def scenario() -> float:
        queue, room = queue_of(100), Room()
        tasks = [asyncio.create_task(queue.wait(room, 100)) for _ in range(40)]
        for _ in range(30):
            await asyncio.sleep(0.5)
            room.slots = 1
            queue.pump()
        await settle()
        predicted = queue.predicted_wait_s(ANYBODY)
        for task in tasks:
            task.cancel()
        return predicted

    assert run_virtual(scenario()) == pytest.approx(10 * 0.5, rel=0.1)


def test_a_storm_of_changes_costs_one_attempt_per_pace() -> None:
    async def scenario() -> None:
        queue, room = queue_of(10), Room()
        waiter = asyncio.create_task(queue.wait(room, 10))
        await settle()
        for _ in range(1000):
            queue.notify()
            await asyncio.sleep(0.001)
        assert room.num_attempts <= 1 + 1.0 / PACE_S + 1
        room.slots = 1
        queue.notify()
        assert await waiter == "granted"

    run_virtual(scenario())


def test_a_storm_of_departures_costs_one_attempt_per_pace() -> None:
    async def scenario() -> None:
        queue, room = queue_of(200), Room()
        waits = (queue.wait(room, 1 + number / 1000) for number in range(100))
        await asyncio.gather(*waits, return_exceptions=True)
        assert room.num_attempts <= 1 + 1.1 / RETRY_S + 0.1 / PACE_S + 1

    run_virtual(scenario())


def test_the_first_change_after_a_pause_is_tried_at_once() -> None:
    async def scenario() -> None:
        queue, room = queue_of(10), Room()
        waiter = asyncio.create_task(queue.wait(room, 10))
        await asyncio.sleep(0.03)
        room.slots = 1
        queue.notify()
        await settle()
        assert waiter.done()
        assert asyncio.get_running_loop().time() == pytest.approx(0.03)

    run_virtual(scenario())


def test_a_try_that_is_due_at_once_is_as_good_as_any() -> None:
    """uvloop's handle of such a timer does not know when it fires."""

    async def scenario() -> str:
        queue, room = queue_of(10), Room()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(queue.wait(room, 10))
            await settle()
            queue.pump()
            await asyncio.sleep(PACE_S - 0.0003)
            queue.notify()
            queue.notify()
            room.slots = 1
        return waiting.result()

    assert run_virtual(scenario()) == "granted"
