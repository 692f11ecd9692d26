"""A fleet around one gateway, in memory on virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from baton.system.clock import Clock
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.v1 import quota_pb2
from services.gateway.endpoints import ENDPOINTS
from services.gateway.gateway import Clients, Gateway, GatewayIdentity
from services.gateway.openai.generation import (
    Delta,
    EndpointName,
    GenerationRequest,
    Identity,
    TokenLogprob,
    Usage,
)
from services.gateway.request.incoming import Head, IncomingRequest
from services.gateway.request.limits import Limits
from services.gateway.safety.hook import SafetyHook
from services.gateway.stored.store import Store
from services.gateway.tenants.outbox_files import waiting_records
from tests.unit.gateway.fake_clients import (
    KEY,
    SECRET,
    FakeQuota,
    FakeRouter,
    FakeTokenizer,
    artifact,
    model_state,
    token_bytes,
    tokenizer_json,
)
from tests.unit.gateway.fake_worker import EOS, FakeWorker

__all__ = [
    "EOS", "KEY", "SECRET", "FakeQuota", "FakeRouter", "FakeTokenizer", "FakeWorker", "Fleet",
    "MemoryFiles", "RecordingSink", "artifact", "inline", "model_state", "simulate", "token_bytes",
    "tokenizer_json",
]  # fmt: skip

T = TypeVar("T")


def whole(body: bytes) -> Callable[[Callable[[int], None]], Awaitable[bytes]]:
    """`read_body` of a request that has arrived already."""

    async def read(need: Callable[[int], None]) -> bytes:
        return body

    return read


class MemoryFiles:
    """The outbox's files."""

    def __init__(self) -> None:
        self.lines: dict[int, list[bytes]] = {}

    def segments(self) -> list[int]:
        return sorted(self.lines)

    def read(self, segment: int) -> list[bytes]:
        return list(self.lines[segment])

    def append(self, segment: int, lines: list[bytes], *, durable: bool) -> None:
        self.lines.setdefault(segment, []).extend(lines)

    def remove(self, segment: int) -> None:
        del self.lines[segment]

    @property
    def waiting(self) -> list[str]:
        """The requests whose records the next life would find."""
        return [
            record.request_id for lines in self.lines.values() for record in waiting_records(lines)
        ]


class RecordingSink:
    """Keeps what the pipeline delivers; `hold` makes it a client that stops reading."""

    gone_reason = "cancelled"
    gone_s: float | None = None
    has_left = False

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.request: GenerationRequest | None = None
        self.head: Head | None = None
        self.batches: list[list[Delta]] = []
        self.usage: Usage | None = None
        self.started_event = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    def opened(self, identity: Identity, request: GenerationRequest) -> "RecordingSink":
        self.identity, self.request = identity, request
        return self

    async def started(self, head: Head) -> None:
        self.head = head
        self.started_event.set()

    async def deltas(self, batch: list[Delta]) -> None:
        self.batches.append(batch)
        await self.free.wait()

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        if self.free.is_set():
            self.batches.append(batch)
        return self.free.is_set()

    async def finished(self, usage: Usage, head: Head) -> None:
        self.usage = usage
        self.head = head

    def text(self, choice: int = 0) -> str:
        deltas = [delta for batch in self.batches for delta in batch if delta.choice == choice]
        return "".join(delta.text for delta in deltas)

    def logprobs(self, choice: int = 0) -> list[TokenLogprob]:
        deltas = [delta for batch in self.batches for delta in batch if delta.choice == choice]
        return [entry for delta in deltas for entry in delta.logprobs]

    def reason(self, choice: int = 0) -> str | None:
        reasons = [d.finish_reason for b in self.batches for d in b if d.choice == choice]
        return reasons[-1]


async def inline(work: Callable[[], T], /) -> T:
    """Run blocking work at once: nothing blocks in memory."""
    return work()


class InlineParser:
    """Parses bodies at once, in this process, and counts them."""

    def __init__(self) -> None:
        self.num_parsed = 0

    async def parse(self, endpoint: EndpointName, body: bytes) -> GenerationRequest:
        self.num_parsed += 1
        # Endpoints of one name parse alike.
        parse = next(each.parse for each in ENDPOINTS.values() if each.name == endpoint)
        return parse(body)


class Fleet:
    """Everything around one gateway, with an attribute for each part that tests speak to."""

    def __init__(
        self,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        aliases: Any,
        limits: Limits | None,
        store: Store | None = None,
        safety: SafetyHook | None = None,
    ) -> None:
        self.clock = clock
        self.tasks = tasks
        self.quota = FakeQuota()
        self.quota.tasks = tasks
        self.tokenizer = FakeTokenizer()
        self.router = FakeRouter()
        self.workers = {name: FakeWorker(name) for name in ("w1", "w2", "w3")}
        self.worker = self.workers["w1"]
        self.unreachable: set[str] = set()
        # Their connections open, and no frame comes.
        self.mute: set[str] = set()
        self.files = MemoryFiles()
        self.body_parser = InlineParser()
        self.num_in_thread = 0
        clients = Clients(
            quota=self.quota,
            tokenizer=self.tokenizer,
            routers={"router": self.router},
            dial=self._dial,
            outbox_files=self.files,
            in_thread=self._in_thread,
            body_parser=self.body_parser,
            store=store,
            safety=safety,
        )
        identity = GatewayIdentity("gw-1", (SECRET,))
        self.gateway = Gateway(
            clients, identity, clock, random.Random(7), aliases=aliases, limits=limits
        )
        # The time that clients give their first tokens.
        self.first_token_s: float | None = None
        self._next_id = 0

    async def _in_thread(self, work: Callable[[], T], /) -> T:
        self.num_in_thread += 1
        return work()

    async def _dial(self, endpoint: str) -> MemoryStream:
        worker = self.workers[endpoint.partition(":")[0]]
        near, far = memory_stream_pair()
        if worker.worker_id in self.unreachable:
            near.cancel()
        elif worker.worker_id not in self.mute:
            self.tasks.create_task(worker.serve(far, self.tasks))
        return near

    def incoming(self, path: str, fields: dict[str, Any], **changes: Any) -> IncomingRequest:
        self._next_id += 1
        values: dict[str, Any] = {
            "request_id": f"r{self._next_id}",
            "endpoint": ENDPOINTS[path],
            "read_body": whole(msgspec.json.encode(fields)),
            "authorization": f"Bearer {KEY}",
            "first_token_s": self.first_token_s,
            "route": path,
            **changes,
        }
        return IncomingRequest(**values)

    async def chat(self, sink: RecordingSink | None = None, **fields: Any) -> RecordingSink:
        """Run one chat request to its end."""
        sink = sink or RecordingSink()
        await self.gateway.pipeline.run(self.chat_request(**fields), sink)
        return sink

    async def complete(self, **fields: Any) -> RecordingSink:
        """Run one legacy completion to its end."""
        sink = RecordingSink()
        body = {"model": "demo", "prompt": "hi", **fields}
        await self.gateway.pipeline.run(self.incoming("/v1/completions", body), sink)
        return sink

    def chat_request(self, **fields: Any) -> IncomingRequest:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
        return self.incoming("/v1/chat/completions", body)

    @property
    def record(self) -> quota_pb2.UsageRecord:
        (record,) = self.quota.settled
        return record


def simulate(
    scenario: Callable[[Fleet], Awaitable[T]],
    *,
    aliases: Any = None,
    limits: Limits | None = None,
    safety: SafetyHook | None = None,
    prepare: Callable[[Fleet], None] = lambda fleet: None,
    store_of: Callable[[Clock], Store] | None = None,
) -> T:
    """Run `scenario` against a fresh fleet on virtual time, which keeps nothing without a store."""

    async def main() -> T:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        assert isinstance(clock, VirtualClock)
        async with _Tasks() as tasks:
            store = store_of(clock) if store_of else None
            fleet = Fleet(clock, tasks, aliases, limits, store, safety)
            prepare(fleet)
            tasks.create_task(fleet.gateway.run())
            await asyncio.sleep(0.001)
            return await scenario(fleet)

    return run_virtual(main())


class _Tasks(AbstractAsyncContextManager[asyncio.TaskGroup]):
    """A task group whose tasks are cancelled when the block ends."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> asyncio.TaskGroup:
        group = await self._group.__aenter__()
        create = group.create_task

        def remembered(coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            task = create(coroutine, **options)
            self._running.append(task)
            return task

        group.create_task = remembered  # type: ignore[method-assign]
        return group

    async def __aexit__(self, *error: Any) -> None:
        for task in self._running:
            task.cancel()
        await self._group.__aexit__(*error)
