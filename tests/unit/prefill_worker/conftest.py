"""A prefill worker's front around a scripted core, and decode workers that speak to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from baton.handoff.frame_codec import serialize
from baton.handoff.ticket import CAPABILITY_BYTES
from baton.testing.engine_driver import encode_tokens
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.wire.kv_spec import to_wire
from baton.wire.prefix_hash import CACHE_KEY_BYTES
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import handoff_pb2, router_pb2
from services.prefill_worker.front import PrefillFront
from tests.unit.worker.scripted_core import BLOCK_SIZE, MODEL_FP, SPEC, make_worker

# Two full blocks and a part of a third.
PROMPT = range(10)
NUM_BLOCKS = -(-len(PROMPT) // BLOCK_SIZE)
CAPABILITY = b"c" * CAPABILITY_BYTES


class Peer:
    """A decode worker's end of one stream."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream

    async def say(self, **frame: Any) -> None:
        await self.stream.write(handoff_pb2.DecodeFrame(**frame))

    async def hello(self, **fields: Any) -> handoff_pb2.PrefillHello:
        """What the worker answers; `fields` differ from what a peer like it says."""
        defaults = {
            "protocol": PROTOCOL_VERSION,
            "worker_id": "d1",
            "model_fp": MODEL_FP,
            "kv_spec": to_wire(SPEC),
            "tp_size": 1,
            "transports": ["grpc"],
            "credit_bytes": 1_000_000,
        }
        await self.say(hello=defaults | fields)
        return (await self.read()).hello

    async def prefill(self, xfer_id: int = 1, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "xfer_id": xfer_id,
            "request_id": f"r{xfer_id}",
            "epoch": 1,
            "capability": CAPABILITY,
            "prompt_ids": encode_tokens(PROMPT),
            "num_prompt_tokens": len(PROMPT),
            "cache_key": b"k" * CACHE_KEY_BYTES,
        }
        sampling = {"max_tokens": 8, "num_logprobs": -1, "num_prompt_logprobs": -1}
        sampling |= fields.pop("sampling", {})
        await self.say(prefill=defaults | fields | {"sampling": sampling})

    async def read(self) -> handoff_pb2.PrefillFrame:
        """The next frame, as protobuf reads it."""
        frame = await self.stream.read()
        assert frame is not None, "the stream has ended"
        return handoff_pb2.PrefillFrame.FromString(serialize(frame))

    async def has_ended(self) -> bool:
        return await self.stream.read() is None


class Worker:
    """Runs a front."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.core, self.deps = make_worker("p1", router_pb2.WORKER_ROLE_PREFILL)
        self.clock = self.deps.clock
        self.front = PrefillFront(self.deps)
        self.tasks = tasks

    def connect(self) -> Peer:
        """A stream before its hello."""
        ours, theirs = memory_stream_pair()
        self.tasks.create_task(self.front.serve(theirs))
        return Peer(ours)

    async def peer(self, **hello: Any) -> Peer:
        """A stream after its hello."""
        peer = self.connect()
        answer = await peer.hello(**hello)
        assert not answer.HasField("failure")
        return peer


@asynccontextmanager
async def worker() -> AsyncIterator[Worker]:
    """Must run on a VirtualLoop."""
    async with asyncio.TaskGroup() as tasks:
        made = Worker(tasks)
        running = tasks.create_task(made.front.run())
        yield made
        await made.front.drain(0.0)
        made.front.check_integrity()
        running.cancel()
