import asyncio
from collections.abc import Callable, Coroutine

import pytest

from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import Abort, StepEvents
from baton.engine.step.engine import Engine, EngineConfig
from baton.testing.engine_driver import add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.local_client import LocalEngineClient
from baton.testing.virtual_clock import VirtualClock, run_virtual

STEP_S = 0.01


def run_with_client(
    main: Callable[[LocalEngineClient, VirtualClock], Coroutine[None, None, None]],
) -> None:
    clock = VirtualClock()
    engine = Engine(EngineConfig("fake-model", "fake", "1", 64), FakeRunner(), clock)
    client = LocalEngineClient(engine, clock, lambda batch: STEP_S)
    run_virtual(main(client, clock), clock)


async def read_until_finished(client: LocalEngineClient) -> list[StepEvents]:
    """The events that brought tokens, up to the first finish (which may bring none)."""
    steps: list[StepEvents] = []
    while True:
        events = await client.events()
        if events.token_ids or events.finished:
            steps.append(events)
        if events.finished:
            return steps


def test_tokens_come_at_the_pace_of_the_steps():
    async def main(client: LocalEngineClient, clock: VirtualClock) -> None:
        client.send(add_sequence(1, range(20), max_tokens=5))
        events = await read_until_finished(client)
        assert len(events) == 5
        assert clock.now() == pytest.approx(5 * STEP_S)
        assert events[-1].load.decode_step_s == pytest.approx(STEP_S)
        assert events[-1].load.prefill_tokens_per_s == pytest.approx(20 / STEP_S)

    run_with_client(main)


def test_a_command_wakes_an_idle_engine_and_commands_of_one_turn_act_together():
    async def main(client: LocalEngineClient, clock: VirtualClock) -> None:
        async def send_later() -> None:
            await asyncio.sleep(3)
            client.send(add_sequence(1, range(20), max_tokens=1))
            client.send(add_sequence(2, range(20), max_tokens=1))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_later())
            events = await client.events()
        assert [started.seq_id for started in events.started] == [1, 2]
        assert clock.now() == pytest.approx(3)
        assert (await client.events()).token_seq_ids == [1, 2]
        assert clock.now() == pytest.approx(3 + STEP_S)

    run_with_client(main)


def test_a_deadline_wakes_an_idle_engine():
    async def main(client: LocalEngineClient, clock: VirtualClock) -> None:
        client.send(add_sequence(1, range(20), credit=0, deadline=2.5))
        events = await read_until_finished(client)
        assert events[-1].finished[0].reason == "deadline_exceeded"
        assert clock.now() == pytest.approx(2.5)

    run_with_client(main)


def test_a_reader_that_gave_up_in_the_middle_of_a_step_loses_nothing():
    async def main(client: LocalEngineClient, clock: VirtualClock) -> None:
        client.send(add_sequence(1, range(20), max_tokens=2))
        assert (await client.events()).started
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(STEP_S / 2):
                await client.events()
        events = await read_until_finished(client)
        assert [event.token_indexes for event in events] == [[0], [1]]
        assert clock.now() == pytest.approx(2 * STEP_S)

    run_with_client(main)


def test_a_core_that_dies_in_a_step_names_the_requests_of_that_step():
    async def main(client: LocalEngineClient, clock: VirtualClock) -> None:
        async def die_in_the_second_step() -> None:
            await asyncio.sleep(1.5 * STEP_S)
            assert client.progress().is_busy
            client.kill()

        client.send(add_sequence(1, range(20)))
        client.send(add_sequence(2, range(20), credit=1))
        with pytest.raises(CoreDied) as death:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(die_in_the_second_step())
                try:
                    await read_until_finished(client)
                except CoreDied as died:
                    caught = died
            raise caught
        assert death.value.suspect_request_ids == ("request-1",)

    run_with_client(main)


def test_a_core_that_dies_while_idle_has_no_suspects():
    async def main(client: LocalEngineClient, clock: VirtualClock) -> None:
        client.send(Abort(1))
        client.kill()
        with pytest.raises(CoreDied) as death:
            await client.events()
        assert death.value.suspect_request_ids == ()

    run_with_client(main)
