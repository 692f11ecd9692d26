"""A decode worker's front around a scripted core, and gateways that speak to it frame by frame."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from baton.runtime.shared_stream import StreamLost
from baton.testing.engine_driver import encode_tokens
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.wire.prefix_hash import CACHE_KEY_BYTES
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from services.decode_worker.front import DecodeFront
from tests.unit.worker.scripted_core import MODEL_FP, make_worker

PROMPT = range(10)


class Gateway:
    """The gateway's end of one connection."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream

    async def say(self, **frame: Any) -> None:
        await self.stream.write(worker_pb2.GatewayFrame(**frame))

    async def hello(self, gateway_id: str = "g1", link: int = 1, **fields: Any) -> Any:
        """What the worker answers."""
        hello = {"protocol": PROTOCOL_VERSION, "gateway_id": gateway_id, "link": link}
        await self.say(hello=hello | fields)
        return (await self.read()).hello

    async def submit(self, handle: int = 1, **fields: Any) -> None:
        """A request whose prompt is prefilled here, unless `prefill_endpoint` says where."""
        defaults: dict[str, Any] = {
            "request_id": f"r{handle}",
            "epoch": 1,
            "handle": handle,
            "model_fp": MODEL_FP,
            "prompt_ids": encode_tokens(PROMPT),
            "num_prompt_tokens": len(PROMPT),
            "cache_key": b"k" * CACHE_KEY_BYTES,
            "initial_credit_tokens": 100,
        }
        sampling = {"max_tokens": 8, "num_choices": 1, "num_logprobs": -1}
        sampling |= {"num_prompt_logprobs": -1} | fields.pop("sampling", {})
        await self.say(submit=defaults | fields | {"sampling": sampling})

    async def read(self) -> worker_pb2.WorkerFrame:
        frame: worker_pb2.WorkerFrame = await self.stream.read()
        assert frame is not None, "the connection has ended"
        return frame

    async def has_ended(self) -> bool:
        return await self.stream.read() is None


class Worker:
    """Runs a front; prefill workers cannot be reached from here."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.core, self.deps = make_worker("w1", router_pb2.WORKER_ROLE_DECODE)
        self.clock = self.deps.clock
        self.front = DecodeFront(self.deps, self._dial)
        self.tasks = tasks

    async def _dial(self, endpoint: str) -> Any:
        raise StreamLost("connection refused")

    def connect(self) -> Gateway:
        """A connection before its hello."""
        ours, theirs = memory_stream_pair()
        self.tasks.create_task(self.front.serve(theirs))
        return Gateway(ours)

    async def gateway(self, gateway_id: str = "g1") -> Gateway:
        """A connection after its hello."""
        gateway = self.connect()
        await gateway.hello(gateway_id)
        return gateway


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
