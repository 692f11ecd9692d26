"""The coroutine of one transfer on the prefill worker: what it tells, when, and its ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from baton.engine.protocol.engine_time import EngineTimes
from baton.engine.protocol.messages import AddSequence, Finished, Progress, SequenceRefused, Started
from baton.handoff.ticket import LEASE_S
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import run_virtual
from baton.wire.kv_spec import to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import handoff_pb2, router_pb2
from services.prefill_worker.front import PrefillFront
from tests.unit.worker.scripted_core import ScriptedCore, make_worker, turns

CAPABILITY = b"c" * 16
# Two full blocks and a part of a third.
NUM_TOKENS = 10
BLOCKS = [1, 2, 3]


class World:
    """A front between a core and a decode worker, both as the test wants them."""

    def __init__(self, core: ScriptedCore, front: PrefillFront, stream: MemoryStream) -> None:
        self.core = core
        self.front = front
        self.stream = stream
        self.frames: list[handoff_pb2.PrefillFrame] = []
        self.serving: asyncio.Task[None]
        self.times: EngineTimes

    async def read(self) -> None:
        while (frame := await self.stream.read()) is not None:
            is_bytes = isinstance(frame, bytes)
            self.frames.append(handoff_pb2.PrefillFrame.FromString(frame) if is_bytes else frame)

    def kinds(self) -> list[str]:
        return [str(frame.WhichOneof("frame")) for frame in self.frames if not is_bye(frame)]

    def last(self, kind: str) -> Any:
        return [getattr(f, kind) for f in self.frames if f.WhichOneof("frame") == kind][-1]

    @property
    def seq_ids(self) -> list[int]:
        """The sequence that was added last, and its forks."""
        added = [command for command in self.core.sent if isinstance(command, AddSequence)][-1]
        return [added.seq_id, *(fork.seq_id for fork in added.forks)]

    async def say(self, **frame: Any) -> None:
        await self.stream.write(handoff_pb2.DecodeFrame(**frame))
        await turns()

    async def ask(self, **fields: Any) -> None:
        await self.say(prefill=prefill(**fields))

    async def start(self, num_cached_tokens: int = 0) -> None:
        """With what is cached in its rows already."""
        started = Started(self.seq_ids[0], BLOCKS, num_cached_tokens, len(BLOCKS))
        cached = [Progress(self.seq_ids[0], num_cached_tokens)] if num_cached_tokens else []
        await self.core.step(started=[started], progress=cached)

    async def compute(self, **columns: Any) -> None:
        """The last step of the prompt: every choice gets its first token."""
        seq_ids = self.seq_ids
        await self.core.step(
            progress=[Progress(seq_ids[0], NUM_TOKENS)],
            token_seq_ids=seq_ids,
            token_ids=[70 + number for number in range(len(seq_ids))],
            token_indexes=[0] * len(seq_ids),
            **columns,
        )

    async def come_to(self, phase: str) -> None:
        await self.ask()
        if phase in ("prefill", "handoff"):
            await self.start()
        if phase == "handoff":
            await self.compute()


def is_bye(frame: handoff_pb2.PrefillFrame) -> bool:
    return frame.WhichOneof("frame") == "bye"


def prefill(**fields: Any) -> handoff_pb2.Prefill:
    given = {
        "xfer_id": 1,
        "request_id": "r1",
        "epoch": 1,
        "capability": CAPABILITY,
        "num_prompt_tokens": NUM_TOKENS,
        "prompt_ids": bytes(4 * NUM_TOKENS),
        "cache_key": b"k" * 32,
        "sampling": {"num_choices": 1, "max_tokens": 8},
    }
    return handoff_pb2.Prefill(**given | fields)


def num_sent(outcome: str) -> float:
    labels = {"direction": "sent", "outcome": outcome}
    return REGISTRY.get_sample_value("baton_handoff_transfers_total", labels) or 0.0


@asynccontextmanager
async def world(credit_bytes: int = 2**20) -> AsyncIterator[World]:
    """At the end nothing may be held."""
    core, deps = make_worker("prefill-1", router_pb2.WORKER_ROLE_PREFILL)
    front = PrefillFront(deps)
    ours, theirs = memory_stream_pair()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(front.run())
        w = World(core, front, ours)
        w.times = deps.dispatcher.times
        w.serving = tasks.create_task(front.serve(theirs))
        hello = handoff_pb2.DecodeHello(
            protocol=PROTOCOL_VERSION,
            worker_id="decode-1",
            model_fp=core.info.model_fp,
            kv_spec=to_wire(core.info.kv_spec),
            transports=["grpc"],
            takes_stripes=True,
            credit_bytes=credit_bytes,
        )
        await ours.write(handoff_pb2.DecodeFrame(hello=hello))
        assert not (await ours.read()).hello.HasField("failure")
        tasks.create_task(w.read())
        yield w
        await front.drain(0.0)
        ours.cancel()
        await asyncio.wait([w.serving])
        front.check_integrity()
        assert front.num_transfers == 0
        assert deps.dispatcher.num_open == 0
        running.cancel()


def play(scenario: Callable[[World], Awaitable[None]], **sizes: int) -> None:
    async def run() -> None:
        async with world(**sizes) as w:
            await scenario(w)

    run_virtual(run())


def test_a_transfer_from_its_prefill_to_done() -> None:
    async def scenario(w: World) -> None:
        await w.ask()
        assert w.kinds() == []
        await w.start()
        assert w.kinds() == ["accepted"]
        await w.compute()
        assert w.kinds()[:2] == ["accepted", "first_tokens"]
        assert w.kinds()[-1] == "commit"
        assert w.last("first_tokens").token_id == 70
        assert w.front.num_transfers == 1, "held until the peer is done"
        await w.say(done={"xfer_id": 1, "capability": CAPABILITY})
        assert w.front.num_transfers == 0
        assert w.core.kinds() == ["AddSequence", "Release"]

    play(scenario)


def test_blocks_leave_as_they_become_final_and_the_first_token_before_the_rest() -> None:
    async def scenario(w: World) -> None:
        await w.ask()
        await w.start(num_cached_tokens=4)
        assert w.kinds() == ["accepted", "blocks"]
        await w.core.step(progress=[Progress(w.seq_ids[0], 8)])
        assert w.kinds() == ["accepted", "blocks", "blocks"]
        await w.compute()
        assert w.kinds()[3:] == ["first_tokens", "blocks", "commit"]

    play(scenario)


def test_without_credit_the_first_token_leaves_all_the_same() -> None:
    async def scenario(w: World) -> None:
        await w.ask()
        await w.start()
        await w.compute()
        assert w.kinds() == ["accepted", "first_tokens"]
        await w.say(credit={"bytes": 2**20})
        assert w.kinds()[-1] == "commit"

    play(scenario, credit_bytes=0)


def test_first_tokens_of_all_choices_and_their_ends_come_in_one_frame() -> None:
    async def scenario(w: World) -> None:
        await w.ask(fork_choices=[1, 2])
        await w.start()
        leader, _, last = w.seq_ids
        await w.compute(finished=[Finished(leader, "stop", 1), Finished(last, "length", 1)])
        first = w.last("first_tokens")
        tokens = [(first.token_id, first.finish_reason)]
        tokens += [(fork.token_id, fork.finish_reason) for fork in first.forks]
        assert tokens == [(70, "stop"), (71, ""), (72, "length")]
        assert w.kinds()[-1] == "commit", "one choice goes on"

    play(scenario)


def test_a_first_token_that_was_the_last_of_every_choice_sends_no_blocks() -> None:
    async def scenario(w: World) -> None:
        await w.ask()
        await w.start()
        await w.compute(finished=[Finished(w.seq_ids[0], "stop", 1)])
        assert "commit" not in w.kinds()

    play(scenario)


@pytest.mark.parametrize("phase", ["queue", "prefill", "handoff"])
@pytest.mark.parametrize("outcome", ["complete", "aborted", "lost", "expired", "cancelled"])
def test_an_end_in_any_phase_frees_everything_once(phase: str, outcome: str) -> None:
    async def scenario(w: World) -> None:
        counted = "lost" if outcome == "cancelled" else outcome
        before = num_sent(counted)
        await w.come_to(phase)
        match outcome:
            case "complete":
                await w.say(done={"xfer_id": 1, "capability": CAPABILITY})
            case "aborted":
                await w.say(abort={"xfer_id": 1, "capability": CAPABILITY})
            case "lost":
                w.stream.cancel()
            case "cancelled":
                w.serving.cancel()
            case "expired":
                await asyncio.sleep(LEASE_S + 1)
                assert w.last("abort").failure.message == "the lease ran out"
        await turns()
        assert w.front.num_transfers == 0
        freed = "Release" if phase == "handoff" else "Abort"
        assert w.core.kinds() == ["AddSequence", freed]
        assert num_sent(counted) == before + 1

    play(scenario)


def test_a_lease_that_is_renewed_does_not_expire() -> None:
    async def scenario(w: World) -> None:
        await w.come_to("handoff")
        for _ in range(4):
            await asyncio.sleep(LEASE_S / 2)
            await w.say(renew={"xfer_ids": [1, 99]})
        assert w.front.num_transfers == 1

    play(scenario)


def test_an_end_with_a_foreign_capability_changes_nothing() -> None:
    async def scenario(w: World) -> None:
        await w.come_to("handoff")
        await w.say(done={"xfer_id": 1, "capability": b"x" * 16})
        await w.say(abort={"xfer_id": 1, "capability": b"x" * 16})
        assert w.front.num_transfers == 1

    play(scenario)


def test_a_core_that_refuses_is_a_refusal_and_one_that_fails_later_an_abort() -> None:
    async def scenario(w: World) -> None:
        await w.come_to("queue")
        await w.core.step(refused=[SequenceRefused(w.seq_ids[0], "no_room", "full")])
        assert w.last("refused").failure.reason == "no_room"
        await w.ask(xfer_id=2)
        await w.start()
        await w.core.step(finished=[Finished(w.seq_ids[0], "deadline_exceeded", 0)])
        assert w.last("abort").failure.reason == "deadline_exceeded"
        assert w.last("abort").capability == CAPABILITY
        assert w.front.num_transfers == 0

    play(scenario)


def test_what_ends_before_its_coroutine_began_leaves_nothing() -> None:
    async def scenario(w: World) -> None:
        abort = handoff_pb2.DecodeFrame(abort={"xfer_id": 1, "capability": CAPABILITY})
        await w.stream.write(handoff_pb2.DecodeFrame(prefill=prefill()))
        await w.stream.write(abort)
        await turns()
        assert w.front.num_transfers == 0
        assert w.core.kinds() in ([], ["AddSequence", "Abort"])
        await w.stream.write(handoff_pb2.DecodeFrame(prefill=prefill(xfer_id=2)))
        await asyncio.sleep(0)
        w.serving.cancel()

    play(scenario)


def test_a_draining_worker_refuses_and_adds_nothing() -> None:
    async def scenario(w: World) -> None:
        await w.come_to("handoff")
        draining = asyncio.ensure_future(w.front.drain(60))
        await turns()
        await w.ask(xfer_id=2)
        assert w.last("refused").failure.reason == "draining"
        assert w.core.kinds() == ["AddSequence"]
        await w.say(done={"xfer_id": 1, "capability": CAPABILITY})
        await draining

    play(scenario)


def test_a_prefill_that_is_repeated_is_computed_once() -> None:
    async def scenario(w: World) -> None:
        for _ in range(2):
            await w.stream.write(handoff_pb2.DecodeFrame(prefill=prefill()))
        await turns()
        assert w.core.kinds() == ["AddSequence"]

    play(scenario)


def test_what_a_prompt_cost_is_told_chunk_by_chunk_so_that_a_cancel_is_billed() -> None:
    async def scenario(w: World) -> None:
        await w.ask()
        await w.start()
        [seq_id] = w.seq_ids
        for num_tokens in (4, 8):
            spent = {"spent_seq_ids": [seq_id], "spent_us": [900], "prefills": [(0, 0)]}
            progress = [Progress(seq_id, num_tokens)]
            await w.core.step(progress=progress, busy_us=1000, **spent)
        bills = [frame.spent for frame in w.frames if frame.WhichOneof("frame") == "spent"]
        assert [(bill.xfer_id, bill.engine.prefill_us) for bill in bills] == [(1, 900), (1, 900)]
        await w.say(abort={"xfer_id": 1, "capability": CAPABILITY})
        last = {"spent_seq_ids": [seq_id], "spent_us": [900]}
        await w.core.step(busy_us=1000, **last)
        assert w.times.unbilled_us == 3 * 100 + 900

    play(scenario)
