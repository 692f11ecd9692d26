"""The shared stream to a decode worker, frame by frame."""

import asyncio
import random
from typing import Any

import pytest

from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.newer_peer import from_the_future, unknown_frame
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError, DeadlineExceeded, NoRoom, Unavailable, to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, sampling_pb2, worker_pb2
from services.gateway.workers.attempt import Attempt, AttemptEvent, Finished, Tokens
from services.gateway.workers.migration import EarlyMigration
from services.gateway.workers.outgoing_frames import PART_TOKENS
from services.gateway.workers.worker_connections import RESUME_WINDOW_S
from services.gateway.workers.worker_link import WorkerLink
from services.gateway.workers.worker_links import WorkerLinks

WORKER = router_pb2.WorkerEndpoint(worker_id="w1", endpoint="w1:1")


def submit(request_id: str = "r1", **fields: Any) -> worker_pb2.Submit:
    values: dict[str, Any] = {
        "request_id": request_id,
        "epoch": 1,
        "sampling": sampling_pb2.Sampling(num_choices=1),
        "prompt_ids": b"\1\0\0\0",
        "num_prompt_tokens": 1,
        "initial_credit_tokens": 64,
        **fields,
    }
    return worker_pb2.Submit(**values)


class Pair:
    """A link and the worker's end of its stream, after the hellos. `far` is the newest."""

    def __init__(self, link: WorkerLink) -> None:
        self.link = link
        self.far: MemoryStream
        self.dialled = asyncio.Event()
        self.is_reachable = True

    async def dial(self, endpoint: str) -> MemoryStream:
        assert endpoint == "w1:1"
        if not self.is_reachable:
            raise StreamLost("connection refused")
        near, self.far = memory_stream_pair()
        self.dialled.set()
        return near

    async def greeted(self, **hello: Any) -> worker_pb2.GatewayHello:
        """The gateway's next hello, answered."""
        await self.dialled.wait()
        self.dialled.clear()
        asked: worker_pb2.GatewayHello = await self.next("hello")
        new_logprobs = {"protocol": PROTOCOL_VERSION, "worker_id": "w1", "boot_epoch": 1, **hello}
        await self.say(hello=worker_pb2.WorkerHello(**new_logprobs))
        return asked

    async def next(self, kind: str) -> Any:
        frame = await self.far.read()
        assert frame is not None
        assert frame.WhichOneof("frame") == kind
        return getattr(frame, kind)

    async def say(self, **fields: Any) -> None:
        await self.far.write(worker_pb2.WorkerFrame(**fields))

    async def step(self, seq: int = 0, **columns: Any) -> None:
        await self.say(step=worker_pb2.Step(**columns), seq=seq)

    async def token(self, index: int, *, seq: int) -> None:
        """Token `index` of the first attempt; its id is 100 + index."""
        await self.step(seq, handles=[1], choices=[0], first_index=[index], ids=[100 + index])


def linked(scenario: Any, *, protocol: int = PROTOCOL_VERSION) -> None:
    async def main() -> None:
        pair = Pair(WorkerLink(WORKER, "gw-1", asyncio.get_running_loop().clock, 3))  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(pair.link.run(pair.dial))
            hello = await pair.greeted(protocol=protocol)
            assert (hello.protocol, hello.gateway_id, hello.link) == (PROTOCOL_VERSION, "gw-1", 3)
            assert not hello.HasField("num_received")
            await scenario(pair)
            running.cancel()

    run_virtual(main())


async def failure_of(attempt: Attempt) -> BatonError:
    with pytest.raises(BatonError) as caught:
        await attempt.events(60)
    return caught.value


def test_columns_are_taken_apart_into_the_attempts() -> None:
    async def scenario(pair: Pair) -> None:
        first, second = pair.link.submit(submit("r1")), pair.link.submit(submit("r2"))
        assert [(await pair.next("submit")).handle for _ in range(2)] == [1, 2]
        await pair.step(
            handles=[2, 1], choices=[0, 0], first_index=[0, 0], counts=[3, 1], ids=[7, 8, 9, 5]
        )
        assert await first.events(1) == [Tokens(0, [5])]
        assert await second.events(1) == [Tokens(0, [7, 8, 9])]
        await pair.step(handles=[1, 2], choices=[0, 0], first_index=[1, 3], ids=[6, 10])
        assert await first.events(1) == [Tokens(0, [6])]
        assert await second.events(1) == [Tokens(0, [10])]

    linked(scenario)


def test_what_a_frame_brings_is_passed_on_while_its_task_goes_on_waiting() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        passed: list[list[Any]] = []

        def pass_on(now_s: float) -> float | None:
            passed.append(attempt.take_events())
            return now_s + 0.1 if len(passed) < 3 else None

        waiting = asyncio.ensure_future(attempt.events(0.1, pass_on))
        for index in range(3):
            await asyncio.sleep(0.09)
            assert not waiting.done()
            await pair.token(index, seq=index + 1)
        assert await waiting == []
        assert passed == [[Tokens(0, [100])], [Tokens(0, [101])], [Tokens(0, [102])]]
        await pair.token(3, seq=4)
        assert await attempt.events(1) == [Tokens(0, [103])]

    linked(scenario)


def test_a_stream_that_falls_silent_while_it_is_passed_on_is_overdue() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        waiting = asyncio.ensure_future(attempt.events(0.1, lambda now_s: now_s + 0.1))
        await asyncio.sleep(0.05)
        await pair.token(0, seq=1)
        await asyncio.sleep(0.09)
        assert not waiting.done()
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(waiting, 0.02)

    linked(scenario)


def test_what_fails_in_passing_on_fails_its_own_attempt_alone() -> None:
    async def scenario(pair: Pair) -> None:
        first, second = pair.link.submit(submit("r1")), pair.link.submit(submit("r2"))
        for _ in range(2):
            await pair.next("submit")

        def broken(now_s: float) -> float | None:
            raise ZeroDivisionError

        waiting = asyncio.ensure_future(first.events(60, broken))
        await asyncio.sleep(0)
        await pair.step(handles=[1, 2], choices=[0, 0], first_index=[0, 0], ids=[5, 7])
        with pytest.raises(ZeroDivisionError):
            await waiting
        assert await second.events(1) == [Tokens(0, [7])]

    linked(scenario)


def test_what_was_taken_in_passing_on_is_delivered_before_a_failure() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        taken: list[AttemptEvent] = []

        def refused_by_the_client(now_s: float) -> float | None:
            taken.extend(attempt.take_events())
            # In the same turn of the loop.
            attempt.fail(Unavailable("lost", reason="worker_lost"))
            return None

        waiting = asyncio.ensure_future(attempt.events(60, refused_by_the_client))
        await asyncio.sleep(0)
        await pair.token(0, seq=1)
        assert await waiting == []
        assert taken == [Tokens(0, [100])]
        assert (await failure_of(attempt)).reason == "worker_lost"

    linked(scenario)


def test_a_request_that_is_cancelled_as_its_passing_on_fails_ends_as_cancelled() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")

        def broken(now_s: float) -> float | None:
            waiting.cancel()
            raise ZeroDivisionError

        waiting = asyncio.ensure_future(attempt.events(60, broken))
        await asyncio.sleep(0)
        await pair.token(0, seq=1)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        drained = asyncio.ensure_future(attempt.drained(0.05))
        await asyncio.sleep(0)
        await pair.token(1, seq=2)
        await drained

    linked(scenario)


def test_a_wait_may_follow_one_that_was_nearly_over() -> None:
    """uvloop's handle of a timer that is due at once cannot tell when it fires."""

    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        short = asyncio.ensure_future(attempt.events(0.0003))
        await asyncio.sleep(0)
        attempt.poke()
        assert await short == []
        await pair.token(0, seq=1)
        assert await attempt.events(1) == [Tokens(0, [100])]

    linked(scenario)


def test_what_arrived_before_a_loss_is_delivered_before_the_failure() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.step(handles=[1], choices=[0], first_index=[0], ids=[5])
        await asyncio.sleep(0.01)
        pair.is_reachable = False
        await pair.far.close()
        await asyncio.sleep(RESUME_WINDOW_S + 0.01)
        assert await attempt.events(1) == [Tokens(0, [5])]
        assert (await failure_of(attempt)).reason == "worker_lost"

    linked(scenario)


def test_a_worker_that_cannot_be_reached_again_is_lost_after_half_a_second() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        pair.is_reachable = False
        loop = asyncio.get_running_loop()
        lost_s = loop.time()
        await pair.far.close()
        assert (await failure_of(attempt)).reason == "worker_lost"
        assert loop.time() - lost_s == pytest.approx(RESUME_WINDOW_S)
        assert pair.link.has_ended
        with pytest.raises(Unavailable):
            pair.link.submit(submit("r2"))

    linked(scenario)


def test_a_first_connection_that_is_cut_is_dialled_once_more() -> None:
    clock = VirtualClock()

    async def main() -> None:
        pair = Pair(WorkerLink(WORKER, "gw-1", clock))
        attempt = pair.link.submit(submit())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(pair.link.run(pair.dial))
            await pair.dialled.wait()
            pair.dialled.clear()
            pair.far.cancel()
            assert not (await pair.greeted()).HasField("num_received")
            assert (await pair.next("submit")).request_id == "r1"
            assert not attempt.ended
            running.cancel()

    run_virtual(main(), clock)


def test_a_stream_without_open_attempts_is_not_dialled_again() -> None:
    async def scenario(pair: Pair) -> None:
        await pair.far.close()
        await pair.link.ended()
        assert not pair.dialled.is_set()

    linked(scenario)


def test_a_lost_stream_is_resumed_and_the_attempt_sees_only_a_pause() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.token(0, seq=1)
        await asyncio.sleep(0.01)
        pair.is_reachable = False
        await pair.far.close()
        await asyncio.sleep(RESUME_WINDOW_S / 2)
        pair.is_reachable = True
        hello = await pair.greeted(num_received=1)
        assert (hello.gateway_id, hello.link, hello.num_received) == ("gw-1", 3, 1)
        await pair.token(0, seq=1)  # what we have already
        await pair.token(1, seq=2)
        await asyncio.sleep(0.01)
        assert await attempt.events(1) == [Tokens(0, [100]), Tokens(0, [101])]

    linked(scenario)


def test_what_the_worker_did_not_get_is_written_again_and_the_rest_anew() -> None:
    async def scenario(pair: Pair) -> None:
        first, second = pair.link.submit(submit("r1")), pair.link.submit(submit("r2"))
        await pair.next("submit")  # the second is lost on the way
        await asyncio.sleep(0.01)
        pair.far.cancel()
        await pair.dialled.wait()
        first.give(0, 80)
        second.cancel()
        pair.link.submit(submit("r3"))
        await pair.greeted(num_received=1)
        assert (await pair.next("submit")).request_id == "r2"
        assert (await pair.next("cancel")).request_id == "r2"
        assert list((await pair.next("credits")).up_to_index) == [80]
        assert (await pair.next("submit")).request_id == "r3"

    linked(scenario)


def test_frames_that_are_missing_are_asked_for_on_a_new_connection() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.token(0, seq=1)
        await pair.token(2, seq=3)
        hello = await pair.greeted(num_received=1)
        assert hello.num_received == 1
        await pair.token(1, seq=2)
        await pair.token(2, seq=3)
        await asyncio.sleep(0.01)
        arrived = await attempt.events(1)
        assert arrived == [Tokens(0, [100 + index]) for index in range(3)]

    linked(scenario)


@pytest.mark.parametrize(
    "hello", [{"boot_epoch": 2, "num_received": 1}, {}, {"num_received": 9}],
    ids=["another life", "nothing to resume", "more than was sent"],
)  # fmt: skip
def test_a_worker_that_cannot_go_on_is_lost_at_once(hello: dict[str, int]) -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.far.close()
        await pair.greeted(**hello)
        loop = asyncio.get_running_loop()
        answered_s = loop.time()
        assert (await failure_of(attempt)).reason == "worker_lost"
        assert loop.time() == answered_s

    linked(scenario)


def test_connections_that_bring_nothing_do_not_put_off_the_end() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        loop = asyncio.get_running_loop()
        lost_s = loop.time()
        while not attempt.ended:
            await pair.far.close()
            await asyncio.sleep(0.03)
            if pair.dialled.is_set():
                await pair.greeted(num_received=1)
                await asyncio.sleep(0.03)
        assert (await failure_of(attempt)).reason == "worker_lost"
        assert loop.time() - lost_s == pytest.approx(RESUME_WINDOW_S, abs=0.1)

    linked(scenario)


def test_a_repeated_token_is_dropped_and_a_gap_loses_the_attempt() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.step(handles=[1], choices=[0], first_index=[0], ids=[5])
        await pair.step(handles=[1], choices=[0], first_index=[0], ids=[5])
        await pair.step(handles=[1], choices=[0], first_index=[1], ids=[6])
        await asyncio.sleep(0.01)
        assert await attempt.events(1) == [Tokens(0, [5]), Tokens(0, [6])]
        await pair.step(handles=[1], choices=[0], first_index=[3], ids=[8])
        assert (await failure_of(attempt)).reason == "worker_lost"
        assert (await pair.next("cancel")).request_id == "r1"

    linked(scenario)


@pytest.mark.parametrize(
    "columns", [{"handles": [1, 1]}, {"choices": []}, {"counts": [1, 1]}, {"ids": [5, 6]}]
)
def test_a_step_that_makes_no_sense_loses_the_attempts_and_nothing_else(columns: Any) -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        sound = {"handles": [1], "choices": [0], "first_index": [0], "ids": [5]}
        await pair.step(seq=1, **{**sound, **columns})
        assert (await failure_of(attempt)).reason == "worker_lost"
        await pair.greeted(num_received=1)
        assert (await pair.next("cancel")).request_id == "r1"
        assert not pair.link.has_ended

    linked(scenario)


def test_tokens_beyond_the_credit_end_the_attempt() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit(initial_credit_tokens=2))
        await pair.next("submit")
        await pair.step(handles=[1], choices=[0], first_index=[0], counts=[3], ids=[1, 2, 3])
        assert (await failure_of(attempt)).reason == "internal"
        await pair.next("cancel")

    linked(scenario)


def test_frames_of_unknown_handles_and_choices_are_ignored() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.step(handles=[9, 1], choices=[0, 5], first_index=[0, 0], ids=[1, 2])
        await pair.say(refused=worker_pb2.Refused(handle=77))
        await pair.step(handles=[1], choices=[0], first_index=[0], ids=[5])
        assert await attempt.events(1) == [Tokens(0, [5])]

    linked(scenario)


def test_a_refusal_carries_the_workers_reason() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        failure = to_wire(NoRoom("full", retry_after_s=0.5))
        await pair.say(refused=worker_pb2.Refused(handle=1, failure=failure))
        error = await failure_of(attempt)
        assert (error.reason, error.retry_after_s) == ("no_room", 0.5)

    linked(scenario)


def test_a_finish_with_a_failure_is_the_attempts_failure() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        step = worker_pb2.Step()
        side = step.side.add(handle=1, choice=0)
        side.finish.failure.CopyFrom(to_wire(Unavailable("x", reason="handoff_failed")))
        await pair.say(step=step)
        assert (await failure_of(attempt)).reason == "handoff_failed"

    linked(scenario)


def test_credits_of_many_attempts_share_a_frame() -> None:
    async def scenario(pair: Pair) -> None:
        attempts = [pair.link.submit(submit(f"r{i}")) for i in range(3)]
        for _ in attempts:
            await pair.next("submit")
        for attempt in attempts:
            attempt.give(0, 80)
            attempt.give(0, 96)
        credits = await pair.next("credits")
        assert list(credits.handles) == [1, 2, 3]
        assert list(credits.up_to_index) == [96, 96, 96]

    linked(scenario)


def test_a_cancel_overtakes_credits_and_submits() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        attempt.give(0, 80)
        pair.link.submit(submit("r2"))
        attempt.cancel()
        cancel = await pair.next("cancel")
        assert (cancel.request_id, cancel.epoch) == ("r1", 1)
        await pair.next("credits")
        assert (await pair.next("submit")).request_id == "r2"

    linked(scenario)


def test_a_submit_that_was_not_written_is_simply_withdrawn() -> None:
    async def scenario(pair: Pair) -> None:
        withdrawn = pair.link.submit(submit("r1"))
        withdrawn.give(0, 80)
        withdrawn.cancel()
        assert withdrawn.ended
        pair.link.submit(submit("r2"))
        assert (await pair.next("submit")).request_id == "r2"

    linked(scenario)


def test_a_cancelled_attempt_counts_its_last_tokens() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        attempt.cancel()
        await pair.next("cancel")
        step = worker_pb2.Step(handles=[1], choices=[0], first_index=[0], ids=[5])
        step.side.add(handle=1, choice=0).finish.reason = "cancelled"
        await pair.say(step=step)
        await attempt.drained(1)
        assert attempt.ended
        assert attempt.num_received == 1
        tokens, finished = await attempt.events(1)
        assert isinstance(tokens, Tokens)
        assert isinstance(finished, Finished)

    linked(scenario)


def test_a_prompt_too_long_for_one_frame_is_continued_before_the_next_submit() -> None:
    async def scenario(pair: Pair) -> None:
        num_tokens = 2 * PART_TOKENS + 100
        ids, hashes = bytes(range(4)) * num_tokens, b"h" * 16 * (num_tokens // 16)
        pair.link.submit(submit(prompt_ids=ids, block_hashes=hashes, num_prompt_tokens=num_tokens))
        pair.link.submit(submit("r2"))
        first = await pair.next("submit")
        parts = [await pair.next("prompt_part") for _ in range(2)]
        assert first.prompt_ids + b"".join(part.prompt_ids for part in parts) == ids
        assert first.block_hashes + b"".join(part.block_hashes for part in parts) == hashes
        assert first.ByteSize() < 1024 * 1024
        assert (await pair.next("submit")).request_id == "r2"

    linked(scenario)


def test_go_away_closes_the_link_to_new_attempts_only() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        new_logprobs: list[float] = []
        pair.link.on_go_away = new_logprobs.append
        await pair.say(go_away=worker_pb2.GoAway(deadline_ms=1000))
        await asyncio.sleep(0.01)
        assert new_logprobs == [1.0]
        with pytest.raises(Unavailable) as caught:
            pair.link.submit(submit("r2"))
        assert caught.value.reason == "draining"
        await pair.step(handles=[1], choices=[0], first_index=[0], ids=[5])
        assert await attempt.events(1) == [Tokens(0, [5])]

    linked(scenario)


def test_a_dead_core_loses_every_attempt() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        await pair.next("submit")
        await pair.say(core_died=worker_pb2.CoreDied())
        assert (await failure_of(attempt)).reason == "worker_lost"

    linked(scenario)


def test_a_protocol_too_old_is_refused_naming_both_sides() -> None:
    async def scenario(pair: Pair) -> None:
        error = await failure_of(pair.link.submit(submit()))
        assert error.reason == "incompatible"
        assert "protocol 0 of w1" in error.message
        assert "gw-1 speaks" in error.message

    linked(scenario, protocol=0)


def test_a_worker_that_never_says_hello_is_lost() -> None:
    clock = VirtualClock()

    async def main() -> None:
        near, _far = memory_stream_pair()

        async def dial(endpoint: str) -> MemoryStream:
            return near

        migration = EarlyMigration(random.Random(1), lambda *_: False, clock)
        links = WorkerLinks(dial, "gw-1", clock, migration)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(links.run())
            await asyncio.sleep(0)
            attempt = links.link_to(WORKER).submit(submit())
            assert (await failure_of(attempt)).reason == "worker_lost"
            running.cancel()

    run_virtual(main(), clock)


def test_a_newer_worker_is_spoken_to_and_what_it_adds_is_left_aside() -> None:
    async def scenario(pair: Pair) -> None:
        attempt = pair.link.submit(submit())
        step = worker_pb2.Step(handles=[1], choices=[0], first_index=[0], ids=[7])
        await pair.far.write(from_the_future(worker_pb2.WorkerFrame(seq=1, step=step)))
        await pair.far.write(unknown_frame(worker_pb2.WorkerFrame, seq=2))
        await pair.token(1, seq=3)
        assert await attempt.events(1) == [Tokens(0, [7]), Tokens(0, [101])]

    linked(scenario, protocol=9)


def test_a_link_that_is_given_up_before_it_was_dialled_is_not_dialled() -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        pair = Pair(WorkerLink(WORKER, "gw-1", clock))
        attempt = pair.link.submit(submit())
        pair.link.give_up()
        async with asyncio.timeout(10):
            await pair.link.run(pair.dial)
        assert not pair.dialled.is_set()
        assert attempt.failure is not None
        assert attempt.failure.reason == "worker_lost"

    run_virtual(scenario(), clock)
