"""A fleet around one gateway, in memory on virtual time: quota, tokenizer, router, workers.

Tokens are bytes: id 0..255 is that byte, EOS ends an answer. A worker answers with the text it was
told, at one token per `step_s` and choice, within its credit.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from baton.runtime.shared_stream import StreamLost
from baton.system.clock import Clock
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import (
    AuthenticationFailed,
    BatonError,
    DeadlineExceeded,
    Unavailable,
    to_wire,
)
from baton.wire.key_registry import key_digest
from baton.wire.v1 import quota_pb2, router_pb2, tokenizer_pb2, worker_pb2
from services.gateway.exchange import Arrival, Head
from services.gateway.gateway import Gateway, GatewayIdentity, Outside
from services.gateway.generation import Delta, GenerationRequest, Identity, Usage
from services.gateway.openai.endpoints import ENDPOINTS
from services.gateway.pipeline import Limits
from services.gateway.ports import CallContext

T = TypeVar("T")

SECRET = b"s" * 32
KEY = "bt-" + "k" * 43
EOS = 256
MODEL_FP = "f" * 32
BLOCK_SIZE = 16


def tokenizer_json() -> bytes:
    """A byte-level tokenizer with no merges whose ids are the bytes themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    vocab = {letters[byte]: byte for byte in range(256)} | {"<eos>": EOS}
    eos = {"id": EOS, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False}
    return msgspec.json.encode(
        {
            "version": "1.0",
            "added_tokens": [{**eos, "normalized": False, "special": True}],
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )


def artifact(generation_config: dict[str, Any] | None = None) -> bytes:
    files = {"tokenizer.json": tokenizer_json()}
    if generation_config is not None:
        files["generation_config.json"] = msgspec.json.encode(generation_config)
    return msgspec.msgpack.encode(files)


def token_bytes(text: str | bytes) -> bytes:
    """Token ids of a text, u32 little-endian."""
    data = text.encode() if isinstance(text, str) else text
    return b"".join(byte.to_bytes(4, "little") for byte in data)


class FakeQuota:
    def __init__(self) -> None:
        self.principal = quota_pb2.AuthenticateResponse(
            tenant="acme", key_id="key-1", fresh_for_s=5.0
        )
        self.limits: Any = None
        self.failure: BatonError | None = None
        self.settle_failure: BatonError | None = None
        self.settle_delay_s = 0.0
        self.reserve_failure: BatonError | None = None
        self.num_authenticated = 0
        self.reserved: list[quota_pb2.ReserveRequest] = []
        self.settled: list[quota_pb2.UsageRecord] = []
        self.contexts: dict[str, CallContext] = {}
        self.renewals: list[quota_pb2.LeaseRenewal] = []
        # What to answer to a renewal: (granted, state).
        self.on_renewal: Callable[[quota_pb2.LeaseRenewal], tuple[int, int]] = lambda renewal: (
            renewal.wanted_output_tokens,
            quota_pb2.LeaseState.STATE_HELD,
        )
        self.renewals_open = True
        self.tasks: asyncio.TaskGroup | None = None

    async def authenticate(
        self, digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        self.num_authenticated += 1
        self._raise(self.failure)
        if digest != key_digest(SECRET, KEY):
            raise AuthenticationFailed("unknown key")
        return self.principal

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        self._raise(self.failure)
        self._raise(self.reserve_failure)
        self.reserved.append(request)
        self.contexts["reserve"] = context
        return quota_pb2.ReserveResponse(
            granted_output_tokens=request.num_output_tokens,
            expires_in_ms=30_000,
            limits=self.limits,
        )

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        await asyncio.sleep(self.settle_delay_s)
        self._raise(self.settle_failure)
        self.settled.append(record)

    async def open_renewals(self) -> MemoryStream:
        if not self.renewals_open:
            raise Unavailable("renewals are closed")
        near, far = memory_stream_pair()
        assert self.tasks is not None
        self.tasks.create_task(self._renew(far))
        return near

    async def probe(self, deadline_s: float) -> None:
        self._raise(self.failure)

    async def _renew(self, stream: MemoryStream) -> None:
        try:
            while (request := await stream.read()) is not None:
                response = quota_pb2.RenewResponse()
                for lease in request.leases:
                    self.renewals.append(lease)
                    granted, state = self.on_renewal(lease)
                    response.leases.add(
                        request_id=lease.request_id, granted_output_tokens=granted, state=state
                    )
                await stream.write(response)
        except StreamLost:
            return

    @staticmethod
    def _raise(failure: BatonError | None) -> None:
        if failure is not None:
            raise failure


class FakeTokenizer:
    def __init__(self) -> None:
        self.data = artifact()
        self.failure: BatonError | None = None
        self.encoded: list[tokenizer_pb2.EncodeRequest] = []
        self.contexts: list[CallContext] = []
        self.num_artifacts = 0

    async def encode(
        self, request: tokenizer_pb2.EncodeRequest, context: CallContext
    ) -> tokenizer_pb2.EncodeResponse:
        if self.failure is not None:
            raise self.failure
        self.encoded.append(request)
        self.contexts.append(context)
        ids = request.token_ids or token_bytes(
            request.text.encode() if request.text else request.chat.messages_json
        )
        num_blocks = len(ids) // 4 // BLOCK_SIZE
        hashes = b"".join(sha256(ids[: i * 64]).digest()[:16] for i in range(1, num_blocks + 1))
        return tokenizer_pb2.EncodeResponse(token_ids=ids, block_hashes=hashes)

    async def artifact(self, model_fp: str) -> bytes:
        self.num_artifacts += 1
        await asyncio.sleep(0.01)
        return self.data

    async def probe(self, deadline_s: float) -> None:
        if self.failure is not None:
            raise self.failure


def model_state(name: str = "demo", model_fp: str = MODEL_FP, ready: bool = True) -> Any:
    return router_pb2.ModelState(
        model_fp=model_fp,
        name=name,
        revision="main",
        block_size=BLOCK_SIZE,
        max_model_len=2048,
        vocab_size=257,
        eos_token_ids=[EOS],
        workers=[
            router_pb2.WorkerState(
                worker_id="w1", endpoint="w1:1", role=router_pb2.WORKER_ROLE_DECODE, ready=ready
            )
        ],
    )


class FakeRouter:
    def __init__(self) -> None:
        self.models = [model_state()]
        self.workers = ["w1", "w2", "w3"]
        self.picked: list[router_pb2.PickRequest] = []
        self.contexts: list[CallContext] = []
        self.queue_s = 0.0
        self.ignores_exclusion = False
        self.failure: BatonError | None = None

    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        self.picked.append(request)
        self.contexts.append(context)
        await asyncio.sleep(self.queue_s)
        if self.failure is not None:
            raise self.failure
        if context.deadline_s <= 0:
            raise DeadlineExceeded("the deadline passed before the call")
        excluded = () if self.ignores_exclusion else request.exclude_worker_ids
        left = [w for w in self.workers if w not in excluded]
        if not left:
            raise Unavailable("no worker is left", reason="no_worker", retry_after_s=1)
        endpoint = router_pb2.WorkerEndpoint(worker_id=left[0], endpoint=f"{left[0]}:1")
        prefill = router_pb2.WorkerEndpoint(worker_id="p1", endpoint="p1:1")
        return router_pb2.PickResponse(
            decode=endpoint, prefill=prefill, queue_us=round(self.queue_s * 1e6), reasons="only one"
        )

    async def watch_admission(self) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        while True:
            yield router_pb2.WatchAdmissionResponse(models=self.models)
            await asyncio.sleep(0.1)


class FakeWorker:
    """A decode worker that answers every submit with `texts`, one per choice (repeated)."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.texts: list[str | bytes] = ["Hello there."]
        self.ends = True
        self.step_s = 0.01
        self.prefill_s = 0.05
        self.num_cached = 0
        self.prefill_stages: dict[str, float] = {}
        self.refusal: BatonError | None = None
        self.protocol = 1
        self.submits: list[worker_pb2.Submit] = []
        self.prompt_parts: list[worker_pb2.PromptPart] = []
        self.cancels: list[worker_pb2.Cancel] = []
        self.credit_frames: list[worker_pb2.Credits] = []
        self.num_dialled = 0
        self.streams: list[MemoryStream] = []
        self.said_bye = False
        self._credit: dict[tuple[int, int], int] = {}
        self._cancelled: set[int] = set()
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    async def serve(self, stream: MemoryStream, tasks: asyncio.TaskGroup) -> None:
        self.num_dialled += 1
        self.streams.append(stream)
        try:
            while (frame := await stream.read()) is not None:
                await self._take_in(frame, stream, tasks)
        except StreamLost:
            return

    async def say(self, frame: worker_pb2.WorkerFrame) -> None:
        """Write a frame on the newest stream."""
        await self._write(self.streams[-1], frame)

    def cut(self) -> None:
        """Lose the newest stream."""
        self.streams[-1].cancel()

    async def _take_in(
        self, frame: worker_pb2.GatewayFrame, stream: MemoryStream, tasks: asyncio.TaskGroup
    ) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "hello":
            hello = worker_pb2.WorkerHello(protocol=self.protocol, worker_id=self.worker_id)
            await self._write(stream, worker_pb2.WorkerFrame(hello=hello))
        elif kind == "submit":
            self.submits.append(frame.submit)
            tasks.create_task(self._answer(frame.submit, stream))
        elif kind == "prompt_part":
            self.prompt_parts.append(frame.prompt_part)
        elif kind == "credits":
            self.credit_frames.append(frame.credits)
            columns = (frame.credits.handles, frame.credits.choices, frame.credits.up_to_index)
            for handle, choice, up_to in zip(*columns, strict=True):
                self._credit[handle, choice] = up_to
            self._poke()
        elif kind == "cancel":
            self.cancels.append(frame.cancel)
            self._cancelled |= {
                s.handle for s in self.submits if s.request_id == frame.cancel.request_id
            }
            self._poke()
        elif kind == "bye":
            self.said_bye = True
            await stream.close()

    async def _answer(self, submit: worker_pb2.Submit, stream: MemoryStream) -> None:
        try:
            if self.refusal is not None:
                refused = worker_pb2.Refused(
                    request_id=submit.request_id,
                    epoch=submit.epoch,
                    handle=submit.handle,
                    failure=to_wire(self.refusal),
                )
                await self._write(stream, worker_pb2.WorkerFrame(refused=refused))
                return
            await asyncio.sleep(self.prefill_s)
            async with asyncio.TaskGroup() as tasks:
                for choice in range(submit.sampling.num_choices):
                    tasks.create_task(self._write_choice(submit, choice, stream))
        except* StreamLost:
            pass

    async def _write_choice(
        self, submit: worker_pb2.Submit, choice: int, stream: MemoryStream
    ) -> None:
        text = self.texts[choice % len(self.texts)]
        data = text.encode() if isinstance(text, str) else text
        ids = list(data) + ([EOS] if self.ends else [])
        key = (submit.handle, choice)
        self._credit.setdefault(key, submit.initial_credit_tokens)
        max_tokens = submit.sampling.max_tokens
        for index, token_id in enumerate(ids[:max_tokens]):
            while index >= self._credit[key] and submit.handle not in self._cancelled:
                await self._changed.wait()
            if submit.handle in self._cancelled:
                await self._finish(stream, key, "cancelled", index)
                return
            await self._write(stream, worker_pb2.WorkerFrame(step=self._step(key, index, token_id)))
            await asyncio.sleep(self.step_s)
        if self.ends or len(ids) >= max_tokens:
            reason = "stop" if self.ends and len(ids) <= max_tokens else "length"
            await self._finish(stream, key, reason, min(len(ids), max_tokens))

    def _step(self, key: tuple[int, int], index: int, token_id: int) -> worker_pb2.Step:
        step = worker_pb2.Step(
            handles=[key[0]], choices=[key[1]], first_index=[index], ids=[token_id]
        )
        if index == 0:
            side = step.side.add(handle=key[0], choice=key[1])
            side.prefill.num_cached_tokens = self.num_cached
            for name, seconds in self.prefill_stages.items():
                side.prefill.stages.add(name=name, duration_us=round(seconds * 1e6))
        return step

    async def _finish(
        self, stream: MemoryStream, key: tuple[int, int], reason: str, count: int
    ) -> None:
        step = worker_pb2.Step()
        side = step.side.add(handle=key[0], choice=key[1])
        side.finish.reason = reason
        side.finish.num_output_tokens = count
        await self._write(stream, worker_pb2.WorkerFrame(step=step))

    async def _write(self, stream: MemoryStream, frame: worker_pb2.WorkerFrame) -> None:
        # One writer at a time, as gRPC wants it.
        async with self._writing:
            await stream.write(frame)

    def _poke(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class MemoryFile:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def read(self) -> list[bytes]:
        return list(self.lines)

    def append(self, lines: list[bytes]) -> None:
        self.lines += lines

    def replace(self, lines: list[bytes]) -> None:
        self.lines = list(lines)


class RecordingSink:
    """Keeps what the pipeline delivers; `hold` makes it a client that stops reading."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.request: GenerationRequest | None = None
        self.head: Head | None = None
        self.batches: list[list[Delta]] = []
        self.usage: Usage | None = None
        self.started_event = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    def opened(self, identity: Identity, request: GenerationRequest) -> None:
        self.identity, self.request = identity, request

    async def started(self, head: Head) -> None:
        self.head = head
        self.started_event.set()

    async def deltas(self, batch: list[Delta]) -> None:
        self.batches.append(batch)
        await self.free.wait()

    async def finished(self, usage: Usage, head: Head) -> None:
        self.usage = usage
        self.head = head

    def text(self, choice: int = 0) -> str:
        deltas = [delta for batch in self.batches for delta in batch if delta.choice == choice]
        return "".join(delta.text for delta in deltas)

    def reason(self, choice: int = 0) -> str | None:
        reasons = [d.finish_reason for b in self.batches for d in b if d.choice == choice]
        return reasons[-1]


async def inline(work: Callable[[], T], /) -> T:
    """Run blocking work at once: nothing blocks in memory."""
    return work()


class Fleet:
    """Everything around one gateway."""

    def __init__(
        self, clock: Clock, tasks: asyncio.TaskGroup, aliases: Any, limits: Limits | None
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
        self.file = MemoryFile()
        outside = Outside(
            quota=self.quota,
            tokenizer=self.tokenizer,
            router=self.router,
            dial=self._dial,
            outbox_file=self.file,
            in_thread=inline,
        )
        identity = GatewayIdentity("gw-1", SECRET)
        self.gateway = Gateway(
            outside, identity, clock, random.Random(7), aliases=aliases, limits=limits
        )
        self._next_id = 0

    async def _dial(self, endpoint: str) -> MemoryStream:
        worker = self.workers[endpoint.partition(":")[0]]
        near, far = memory_stream_pair()
        if worker.worker_id in self.unreachable:
            near.cancel()
        else:
            self.tasks.create_task(worker.serve(far, self.tasks))
        return near

    def arrival(self, path: str, fields: dict[str, Any], **changes: Any) -> Arrival:
        self._next_id += 1
        values: dict[str, Any] = {
            "request_id": f"r{self._next_id}",
            "endpoint": ENDPOINTS[path],
            "body": msgspec.json.encode(fields),
            "authorization": f"Bearer {KEY}",
            **changes,
        }
        return Arrival(**values)

    async def chat(self, sink: RecordingSink | None = None, **fields: Any) -> RecordingSink:
        """Run one chat request to its end."""
        sink = sink or RecordingSink()
        await self.gateway.pipeline.run(self.chat_arrival(**fields), sink)
        return sink

    def chat_arrival(self, **fields: Any) -> Arrival:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
        return self.arrival("/v1/chat/completions", body)

    @property
    def record(self) -> quota_pb2.UsageRecord:
        (record,) = self.quota.settled
        return record


def simulate(
    scenario: Callable[[Fleet], Awaitable[T]],
    *,
    aliases: Any = None,
    limits: Limits | None = None,
    prepare: Callable[[Fleet], None] = lambda fleet: None,
) -> T:
    """Run `scenario` against a fresh fleet on virtual time."""

    async def main() -> T:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        assert isinstance(clock, VirtualClock)
        async with _Tasks() as tasks:
            fleet = Fleet(clock, tasks, aliases, limits)
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
