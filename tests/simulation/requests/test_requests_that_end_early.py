"""Clients that leave or stop reading, and deadlines that pass: whole fleet, virtual time."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import DeadlineExceeded, Overloaded
from baton.worker import instruments
from services.gateway.openai.endpoints import ENDPOINTS
from services.gateway.request.incoming import IncomingRequest
from tests.simulation.fleet import Answer, Fleet, running_fleet

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
NUM_ABORTS = 2000 if IS_LONG else 200
# A step of the fleet takes up to 0.1 s, and a client may leave while it runs.
FREE_AFTER_S = 0.25
# No component works on longer than this behind a deadline.
LATE_S = 0.1


@dataclass
class Reader(Answer):
    """Reads until told to stop, and goes on when told so. Notes when it got something."""

    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    num_before_stop: int = 10**9
    now: Callable[[], float] = lambda: 0.0
    times: list[float] = field(default_factory=list)

    def take(self, batch: list) -> None:
        super().take(batch)
        self.times.append(self.now())

    @property
    def has_stopped(self) -> bool:
        return len(self.times) >= self.num_before_stop and not self.may_read.is_set()

    async def deltas(self, batch: list) -> None:
        await super().deltas(batch)
        if self.has_stopped:
            await self.may_read.wait()

    def offer(self, batch: list, now_s: float) -> bool:
        return not self.has_stopped and super().offer(batch, now_s)

    def gaps_after(self, start: float) -> list[float]:
        times = [time for time in self.times if time >= start]
        return sorted(after - before for before, after in pairwise(times))


@dataclass
class Leaving(Answer):
    """Tells of the first token."""

    has_token: asyncio.Event = field(default_factory=asyncio.Event)

    async def started(self, head: object) -> None:
        self.has_token.set()


def held(fleet: Fleet) -> int:
    return sum(worker.num_blocks_held for worker in fleet.workers.values())


def num_queued(fleet: Fleet) -> int:
    return sum(model.num_queued for model in fleet.router.admission().models)


def requests_in_engines(fleet: Fleet) -> set[str]:
    return {
        seq.request.request_id
        for worker in fleet.workers.values()
        for seq in worker.engine._state.sequences.all()
    }


def cancels(phase: str) -> tuple[float, float]:
    """Observations so far of one phase, and those of FREE_AFTER_S at most."""
    samples = instruments.CANCEL_SECONDS.labels(phase).collect()[0].samples
    [count] = [s.value for s in samples if s.name.endswith("_count")]
    within = [s.value for s in samples if s.labels.get("le") == str(FREE_AFTER_S)]
    return count, within[0]


def check_nothing_is_left(fleet: Fleet) -> None:
    """Every count that a gauge shows is at zero."""
    for worker in fleet.workers.values():
        load = worker.engine.measure_load()
        assert load.num_running + load.num_waiting + load.num_parked + load.num_not_started == 0
        assert load.num_blocks_free == worker.engine.info.num_blocks
        assert load.num_blocks_promised == load.num_queued_prefill_tokens == 0
        assert worker.deps.dispatcher.num_open == 0
        assert not worker.deps.dispatcher._freeing
    assert num_queued(fleet) == 0
    gateway = fleet.gateway
    assert not gateway.leases._leases
    assert gateway.outbox.num_waiting == 0
    assert all(link.num_open == 0 for link in gateway.links._links.values())


async def leave(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(tmp_path: Path, scenario: Callable, **sizes: int) -> None:
    async def main(clock: VirtualClock) -> None:
        async with running_fleet(7, clock, tmp_path, **sizes) as fleet:
            await scenario(fleet)

    clock = VirtualClock()
    run_virtual(main(clock), clock)


def test_a_client_that_leaves_while_its_prompt_is_tokenized_or_queued_leaves_nothing(
    tmp_path: Path,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        encode, is_encoding = fleet.tokenizer.encode, asyncio.Event()

        async def slow(*arguments: object) -> object:
            is_encoding.set()
            await asyncio.sleep(5)
            return await encode(*arguments)

        fleet.tokenizer.encode = slow
        task = asyncio.ensure_future(fleet.ask("hello", max_tokens=5, seed=1))
        await is_encoding.wait()
        await leave(task)
        check_nothing_is_left(fleet)
        (record,) = fleet.quota.settled
        assert (record.num_prompt_tokens, record.finish_reason) == (0, "cancelled")

        fleet.tokenizer.encode = encode
        asking = [fleet.ask("x" * 700, max_tokens=50, seed=1) for _ in range(12)]
        tasks = [asyncio.ensure_future(ask) for ask in asking]
        while not num_queued(fleet):
            await asyncio.sleep(0.001)
        for task in reversed(tasks):
            await leave(task)
        assert num_queued(fleet) == 0
        await asyncio.sleep(FREE_AFTER_S)
        assert held(fleet) == 0
        check_nothing_is_left(fleet)

    run(tmp_path, scenario, num_decode=1, num_blocks=110)


@pytest.mark.parametrize("num_prefill", [2, 0])
def test_mixed_aborts_free_everything_within_a_quarter_of_a_second(
    num_prefill: int, tmp_path: Path
) -> None:
    phases = ("queue", "prefill", "handoff", "decode") if num_prefill else ("prefill", "decode")

    async def scenario(fleet: Fleet) -> None:
        rng = random.Random(11)
        before = {phase: cancels(phase) for phase in phases}

        async def one(number: int) -> None:
            await asyncio.sleep(number * 0.01)
            choices = rng.choice([1, 1, 2])
            text, max_tokens = "x" * rng.randint(1, 600), rng.randint(1, 80)
            patience_s = rng.choice([rng.uniform(0, 0.1), rng.uniform(0, 0.5), None])
            reader = Leaving()
            asking = fleet.ask(text, reader, max_tokens=max_tokens, seed=number, n=choices)
            task = asyncio.ensure_future(asking)
            if patience_s is None:  # it leaves with the first token, whose blocks are on their way
                await reader.has_token.wait()
            else:
                await asyncio.wait((task,), timeout=patience_s)
            if not task.done():
                await leave(task)

        async with asyncio.TaskGroup() as tasks:
            for number in range(NUM_ABORTS):
                tasks.create_task(one(number))
        await asyncio.sleep(FREE_AFTER_S)
        assert held(fleet) == 0
        check_nothing_is_left(fleet)
        for phase in phases:
            count, within = (
                now - old for now, old in zip(cancels(phase), before[phase], strict=True)
            )
            assert count > 0, f"no client left in {phase}"
            assert within >= 0.95 * count, f"{phase}: {count - within} of {count} took too long"

    run(tmp_path, scenario, num_prefill=num_prefill, num_blocks=160)


def test_stalled_readers_cost_the_others_nothing_and_go_on_where_they_stopped(
    tmp_path: Path,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def reading(name: str, num_tokens: int, **told: int) -> Reader:
            reader = Reader(now=fleet.clock.now, **told)
            await fleet.ask(
                f"tell me about {name}", reader, max_tokens=num_tokens, seed=3, request_id=name
            )
            return reader

        async def p95_of_readers(name: str) -> float:
            """The gaps of eight readers, from the moment at which all of them have begun."""
            start = fleet.clock.now() + 0.5
            readers = [reading(f"{name}{number}", 300) for number in range(8)]
            gaps = sorted(g for r in await asyncio.gather(*readers) for g in r.gaps_after(start))
            assert len(gaps) > 1000
            return gaps[int(0.95 * len(gaps))]

        alone = await p95_of_readers("a")
        stalled = [
            Reader(now=fleet.clock.now, num_before_stop=number % 5 + 1) for number in range(40)
        ]
        asking = [
            asyncio.ensure_future(
                fleet.ask("a" * 50, reader, max_tokens=150, seed=5, request_id=f"s{number}")
            )
            for number, reader in enumerate(stalled)
        ]
        await asyncio.sleep(10)
        assert not any(task.done() for task in asking)
        parked = sum(w.engine.measure_load().num_parked for w in fleet.workers.values())
        assert parked == len(stalled)
        assert held(fleet) == 0, "they gave up their blocks"
        beside = await p95_of_readers("b")
        assert beside <= 1.1 * alone, (beside, alone)
        for reader in stalled:
            reader.may_read.set()
        await asyncio.gather(*asking)
        for number, reader in enumerate(stalled):
            assert reader.texts[0] == fleet.expected(f"s{number}", 150, 5)

    # Room for some of them only: the others wait for what those give up.
    run(tmp_path, scenario, num_decode=1, num_blocks=256)


def test_no_component_works_on_behind_a_deadline(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        rng = random.Random(5)
        ends: Counter[str] = Counter()

        async def one(number: int) -> None:
            await asyncio.sleep(rng.uniform(0, 2))
            request_id, deadline_s = f"d{number}", rng.choice([0.02, 0.1, 0.3, 1.0, 3.0])
            body = {
                "model": "sim",
                "messages": [{"role": "user", "content": "x" * rng.randint(1, 300)}],
                "max_tokens": rng.randint(1, 120),
            }

            async def read_body(need: object) -> bytes:
                return msgspec.json.encode(body)

            arrival = IncomingRequest(
                request_id,
                ENDPOINTS["/v1/chat/completions"],
                read_body,
                f"Bearer {fleet.api_key}",
                deadline_s=deadline_s,
            )
            started = fleet.clock.now()
            task = asyncio.ensure_future(fleet.gateway.pipeline.run(arrival, Answer()))
            await asyncio.sleep(deadline_s + LATE_S)
            assert task.done(), f"the gateway works on {request_id} after {deadline_s} s"
            assert request_id not in requests_in_engines(fleet), (
                f"{request_id} after {deadline_s} s"
            )
            error = task.exception()
            ends["late" if error else "in time"] += 1
            # The router refuses at once what would come too late.
            assert error is None or isinstance(error, DeadlineExceeded | Overloaded), error
            assert fleet.clock.now() - started <= deadline_s + LATE_S + 0.001

        async with asyncio.TaskGroup() as tasks:
            for number in range(300 if IS_LONG else 60):
                tasks.create_task(one(number))
        assert min(ends["late"], ends["in time"]) > 5, ends
        check_nothing_is_left(fleet)

    run(tmp_path, scenario, num_blocks=200)
