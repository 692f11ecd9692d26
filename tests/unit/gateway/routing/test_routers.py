"""Tests of several routers as one: who is active, who takes over, what the gateway believes."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import BatonError, DeadlineExceeded, Overloaded, Unavailable
from baton.wire.v1 import router_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.routing.fallback_picker import FallbackPicker
from services.gateway.routing.prompt_keys import NUM_LATEST, PromptKeys
from services.gateway.routing.ready_workers import ReadyWorkers
from services.gateway.routing.routers import Routers

NAMES = ("10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7")


def model(model_fp: str = "m1", num_running: int = 0, ready: bool = True) -> Any:
    worker = router_pb2.WorkerState(
        worker_id="d1",
        role=router_pb2.WORKER_ROLE_DECODE,
        ready=ready,
        num_running=num_running,
    )
    return router_pb2.ModelState(model_fp=model_fp, name=model_fp, workers=[worker])


class OneRouter:
    """Speaks every 0.1 s while `models` is set; picks itself, or raises `failure`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = "1"
        self.zone = ""
        self.models: list[Any] | None = [model()]
        self.failure: BatonError | None = None
        self.takes_s = 0.0
        self.deadlines_s: list[float] = []
        self.refused: list[Any] = []
        self.told: list[bytes] = []

    async def pick(self, request: Any, context: CallContext) -> router_pb2.PickResponse:
        self.deadlines_s.append(context.deadline_s)
        self.told = [row.fingerprint for row in request.quarantined]
        await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        reasons = router_pb2.PickReasons(remark=self.name)
        return router_pb2.PickResponse(reasons=reasons)

    async def watch_admission(self) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        while self.models is not None:
            yield router_pb2.WatchAdmissionResponse(
                models=self.models,
                quarantined=self.refused,
                software_version=self.version,
                zone=self.zone,
            )
            await asyncio.sleep(0.1)
        raise Unavailable("silent")


class Scene:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.each = {name: OneRouter(name) for name in NAMES}
        self.seen: list[Sequence[Any]] = []
        self.alone = FallbackPicker(random.Random(4), ReadyWorkers(), lambda worker_id: 0).pick
        self.routers = Routers(
            self.each, clock, random.Random(3), self.seen.append, self.alone, "a"
        )

    async def pick(self, model_fp: str = "m1", deadline_s: float = 10.0, **fields: Any) -> str:
        request = router_pb2.PickRequest(model_fp=model_fp, **fields)
        answer = await self.routers.pick(request, CallContext("r1", deadline_s))
        return str(answer.reasons.remark)


def following(scenario: Any) -> None:
    clock = VirtualClock()

    async def main() -> None:
        scene = Scene(clock)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.routers.run())
            await asyncio.sleep(0.01)
            await scenario(scene)
            running.cancel()

    run_virtual(main(), clock)


def test_equal_requests_go_to_one_router_and_models_are_spread() -> None:
    async def scenario(scene: Scene) -> None:
        assert len({await scene.pick() for _ in range(20)}) == 1
        for each in scene.each.values():
            each.models = [model(f"m{number}") for number in range(60)]
        await asyncio.sleep(0.2)
        picked = Counter([await scene.pick(f"m{number}") for number in range(60)])
        assert min(picked[name] for name in NAMES) >= 10

    following(scenario)


def test_a_router_of_the_own_zone_is_asked_first_while_it_speaks() -> None:
    async def scenario(scene: Scene) -> None:
        near, *far = scene.each.values()
        near.zone = "a"
        for each in far:
            each.zone = "b"
        for each in scene.each.values():
            each.models = [model(f"m{number}") for number in range(20)]
        await asyncio.sleep(0.2)
        assert {await scene.pick(f"m{number}") for number in range(20)} == {near.name}
        near.models = None
        await asyncio.sleep(0.2)
        assert {await scene.pick(f"m{number}") for number in range(20)} == {r.name for r in far}

    following(scenario)


def blocks(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(16, "big") for number in numbers)


def test_requests_with_one_new_beginning_meet_and_others_are_spread() -> None:
    async def scenario(scene: Scene) -> None:
        met = []
        for family in range(60):
            shared = range(100 * family, 100 * family + 20)
            met.append(
                {await scene.pick(block_hashes=blocks(*shared, 9000 + child)) for child in range(5)}
            )
        assert all(len(names) == 1 for names in met)
        picked = Counter(name for names in met for name in names)
        assert min(picked[name] for name in NAMES) >= 10

    following(scenario)


def test_a_system_prompt_that_all_share_sends_nobody_to_one_router() -> None:
    async def scenario(scene: Scene) -> None:
        system = range(100)
        picked: Counter[str] = Counter()
        for number in range(600):
            prompt = blocks(*system, *range(1000 * number + 1000, 1000 * number + 1040))
            picked[await scene.pick(block_hashes=prompt, request_id=str(number))] += 1
        assert min(picked[name] for name in NAMES) >= 150

    following(scenario)


def test_one_prompt_that_everybody_sends_goes_to_all_routers() -> None:
    async def scenario(scene: Scene) -> None:
        picked: Counter[str] = Counter()
        for number in range(300):
            picked[await scene.pick(block_hashes=blocks(1, 2, 3), request_id=str(number))] += 1
        assert min(picked[name] for name in NAMES) >= 70

    following(scenario)


def test_when_a_router_dies_only_its_share_moves() -> None:
    async def scenario(scene: Scene) -> None:
        def prompt(number: int) -> bytes:
            return blocks(*range(10 * number, 10 * number + 9))

        before = [await scene.pick(block_hashes=prompt(number)) for number in range(60)]
        scene.each[NAMES[0]].models = None
        await asyncio.sleep(0.2)
        after = [await scene.pick(block_hashes=prompt(number)) for number in range(60)]
        assert all(b == a for b, a in zip(before, after, strict=True) if b != NAMES[0])
        moved = Counter(a for b, a in zip(before, after, strict=True) if b == NAMES[0])
        assert moved.keys() == set(NAMES[1:])

    following(scenario)


def test_a_repeated_pick_is_not_counted_as_another_request() -> None:
    keys = PromptKeys()
    again = router_pb2.PickRequest(
        request_id="r", block_hashes=blocks(1, 2, 3), exclude_worker_ids=["d1"]
    )
    assert {keys.key(again) for _ in range(1000)} == {blocks(1)}


def test_what_was_common_is_so_no_longer_when_others_have_come() -> None:
    keys = PromptKeys()

    def key(*numbers: int) -> bytes:
        return keys.key(router_pb2.PickRequest(request_id="r", block_hashes=blocks(*numbers)))

    assert [key(1, 2, 3) for _ in range(20)][-1] == b"r"
    for number in range(2 * NUM_LATEST):
        key(10 + number)
    assert key(1, 2, 3) == blocks(1)


def test_every_gateway_chooses_the_same_order() -> None:
    async def scenario(scene: Scene) -> None:
        other = Routers(
            dict(reversed(scene.each.items())),
            scene.clock,
            random.Random(99),
            lambda _: None,
            scene.alone,
        )
        assert other.in_order("m1") == scene.routers.in_order("m1")

    following(scenario)


def test_a_router_that_falls_silent_is_passed_over_and_comes_back() -> None:
    async def scenario(scene: Scene) -> None:
        active = await scene.pick()
        scene.each[active].models = None
        await asyncio.sleep(0.2)
        assert await scene.pick() != active
        assert not scene.each[active].deadlines_s[1:]
        scene.each[active].models = [model()]
        await asyncio.sleep(1)
        assert await scene.pick() == active

    following(scenario)


def test_a_router_that_knows_no_ready_worker_yet_is_not_active() -> None:
    async def scenario(scene: Scene) -> None:
        active = await scene.pick()
        for state in ([], [model(ready=False)]):
            scene.each[active].models = state
            await asyncio.sleep(0.2)
            assert await scene.pick() != active

    following(scenario)


def fleet_of(num_ready: int) -> Any:
    state = model()
    for number in range(1, num_ready):
        state.workers.add().CopyFrom(state.workers[0])
        state.workers[number].worker_id = f"d{number + 1}"
    return state


def test_a_router_that_has_just_started_takes_over_when_it_knows_nearly_all_workers() -> None:
    async def scenario(scene: Scene) -> None:
        for each in scene.each.values():
            each.models = [fleet_of(100)]
        await asyncio.sleep(0.2)
        active = await scene.pick()
        for num_known in (1, 50, 89):
            scene.each[active].models = [fleet_of(num_known)]
            await asyncio.sleep(0.2)
            assert await scene.pick() != active
        scene.each[active].models = [fleet_of(90)]
        await asyncio.sleep(0.2)
        assert await scene.pick() == active

    following(scenario)


def test_the_only_router_is_active_with_the_few_workers_that_it_knows() -> None:
    async def scenario(scene: Scene) -> None:
        active, *others = scene.routers.in_order("m1")
        for name in others:
            scene.each[name].models = None
        scene.each[active].models = [fleet_of(1)]
        await asyncio.sleep(0.2)
        assert await scene.pick() == active

    following(scenario)


def test_a_pick_that_a_leaving_router_refuses_is_repeated_with_the_time_that_is_left() -> None:
    async def scenario(scene: Scene) -> None:
        first, second, _ = scene.routers.in_order("m1")
        scene.each[first].failure = Unavailable("this router is stopping")
        scene.each[first].takes_s = 4
        assert await scene.pick(deadline_s=10) == second
        assert scene.each[second].deadlines_s == [pytest.approx(6)]

    following(scenario)


def test_a_refusal_is_an_answer_and_is_not_asked_for_twice() -> None:
    async def scenario(scene: Scene) -> None:
        first, second, _ = scene.routers.in_order("m1")
        scene.each[first].failure = Overloaded("queue full")
        with pytest.raises(Overloaded):
            await scene.pick()
        assert not scene.each[second].deadlines_s

    following(scenario)


def test_with_no_time_left_no_further_router_is_asked() -> None:
    async def scenario(scene: Scene) -> None:
        first, second, _ = scene.routers.in_order("m1")
        scene.each[first].failure = Unavailable("this router is stopping")
        scene.each[first].takes_s = 4
        with pytest.raises(DeadlineExceeded):
            await scene.pick(deadline_s=4)
        assert not scene.each[second].deadlines_s

    following(scenario)


def test_when_no_router_answers_the_client_learns_no_address() -> None:
    async def scenario(scene: Scene) -> None:
        for each in scene.each.values():
            each.failure = Unavailable("ipv4:10.0.0.1:7: connection refused")
        with pytest.raises(Unavailable) as caught:
            await scene.pick()
        assert caught.value.message == "no router answers"
        assert caught.value.reason == "overloaded"

    following(scenario)


def test_the_gateway_sees_each_model_as_its_active_router_does() -> None:
    async def scenario(scene: Scene) -> None:
        for number, each in enumerate(scene.each.values()):
            each.models = [model("m1", number), model("m2", number)]
        scene.each[NAMES[2]].models.append(model("only-here"))
        await asyncio.sleep(0.2)
        seen = {state.model_fp: state for state in scene.seen[-1]}
        for model_fp in ("m1", "m2"):
            active = scene.routers.in_order(model_fp)[0]
            assert seen[model_fp].workers[0].num_running == NAMES.index(active)
        assert "only-here" in seen

    following(scenario)


def test_the_last_view_stays_while_no_router_speaks() -> None:
    async def scenario(scene: Scene) -> None:
        for each in scene.each.values():
            each.models = None
        await asyncio.sleep(1)
        assert not scene.routers.is_any_heard
        assert [state.model_fp for state in scene.seen[-1]] == ["m1"]

    following(scenario)


def test_a_quarantine_reaches_the_next_router_and_its_own_routers_next_life() -> None:
    async def scenario(scene: Scene) -> None:
        active = await scene.pick()
        killer = router_pb2.Quarantined(fingerprint=b"k", left_s=600, software_version="1")
        scene.each[active].refused = [killer]
        await asyncio.sleep(0.2)
        await scene.pick()
        assert scene.each[active].told == [], "it knows"
        scene.each[active].models = None
        await asyncio.sleep(0.2)
        second = await scene.pick()
        assert scene.each[second].told == [b"k"]
        scene.each[second].refused = [killer]
        scene.each[active].models, scene.each[active].refused = [model()], []
        await asyncio.sleep(0.6)
        assert await scene.pick() == active
        assert scene.each[active].told == [b"k"], "it has forgotten"
        scene.each[second].refused = []
        scene.clock.advance(600)
        await scene.pick()
        assert scene.each[active].told == []

    following(scenario)


def test_a_router_of_newer_workers_is_not_reminded_of_its_old_quarantine() -> None:
    async def scenario(scene: Scene) -> None:
        active = await scene.pick()
        killer = router_pb2.Quarantined(fingerprint=b"k", left_s=600, software_version="1")
        scene.each[active].refused = [killer]
        await asyncio.sleep(0.2)
        scene.each[active].refused, scene.each[active].version = [], "2"
        await asyncio.sleep(0.2)
        await scene.pick()
        assert scene.each[active].told == []

    following(scenario)


def test_a_pick_does_not_wait_at_a_router_that_speaks_no_more() -> None:
    async def scenario(scene: Scene) -> None:
        active, second = scene.routers.in_order("m1")[:2]
        scene.each[active].takes_s = 500.0
        asking = asyncio.create_task(scene.pick(deadline_s=600.0))
        await asyncio.sleep(5.0)
        assert not asking.done()
        scene.each[active].models = None
        assert await asking == second
        assert scene.clock.now() < 6.0
        assert scene.each[second].deadlines_s[0] == pytest.approx(595, abs=1)

    following(scenario)
