"""One prefill worker, one decode worker and a fake gateway in one process, on virtual time."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from baton.engine.protocol.messages import SamplingParams
from baton.engine.step.engine import Engine, EngineConfig
from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.frame_codec import parse, serialize
from baton.handoff.transports.device_reads import DeviceReads
from baton.handoff.transports.nixl_agent import NixlAgent
from baton.runtime.shared_stream import StreamLost
from baton.system.memory_file import create_memory_file
from baton.testing.device_runner import AheadFakeRunner, DeviceFakeRunner
from baton.testing.engine_driver import encode_tokens
from baton.testing.fake_runner import FakeRunner
from baton.testing.inline_grammars import InlineGate, InlineGrammars
from baton.testing.local_client import LocalEngineClient
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import VirtualClock
from baton.wire.kv_spec import to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import handoff_pb2, router_pb2, sampling_pb2, worker_pb2
from baton.worker.deps import WorkerDeps
from baton.worker.program import make_parts
from baton.worker.transports import HandoffOptions
from services.decode_worker.front import DecodeFront
from services.prefill_worker.front import PrefillFront

MODEL_FP = "fake-model"
PREFILL_ENDPOINT = "prefill:1"
STEP_S = 0.01
# Set by the fixture `by_each_transport` while a test runs with shared memory.
HANDOFF_DIR: Path | None = None

# Gets a frame of the handoff stream on its way and returns what arrives: usually [frame].
Tamper = Callable[[Any], list[Any]]


def pass_on(frame: Any) -> list[Any]:
    return [frame]


class TamperedStream:
    """A FrameStream whose incoming and outgoing frames may be changed, dropped, doubled or cut."""

    def __init__(
        self,
        inner: MemoryStream,
        outgoing: Tamper,
        incoming: Tamper,
        delay_s: Callable[[Any], float],
    ) -> None:
        self.inner = inner
        self._delay_s = delay_s
        self._outgoing = outgoing
        self._incoming = incoming
        self._arrived: list[Any] = []

    async def read(self) -> Any:
        while not self._arrived:
            frame = await self.inner.read()
            if frame is None:
                return None
            copy = copy_of(frame)
            await asyncio.sleep(self._delay_s(copy))
            self._arrived = self._incoming(copy)
        return self._arrived.pop(0)

    async def write(self, frame: Any) -> None:
        for changed in self._outgoing(copy_of(frame)):
            await self.inner.write(changed)

    async def close(self) -> None:
        await self.inner.close()


def copy_of(frame: Any) -> Any:
    """Of a message; of one that is bytes already, what protobuf reads in it."""
    if isinstance(frame, bytes):
        return handoff_pb2.PrefillFrame.FromString(frame)
    copy = type(frame)()
    copy.CopyFrom(frame)
    return copy


@dataclass
class Worker:
    """One worker's objects. `free_at_start` is what the used-blocks gauge must come back to."""

    engine: Engine
    client: LocalEngineClient
    deps: WorkerDeps
    front: Any

    @property
    def num_used_blocks(self) -> int:
        load = self.engine.measure_load()
        return self.engine.info.num_blocks - load.num_blocks_free + load.num_blocks_promised

    def check(self) -> None:
        self.engine.check_integrity()
        self.front.check_integrity()


@dataclass
class Answer:
    """What the gateway got for one submit."""

    handle: int = 0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    prefills: dict[int, worker_pb2.PrefillSummary] = field(default_factory=dict)
    finishes: dict[int, worker_pb2.Finish] = field(default_factory=dict)
    logprobs: dict[int, list[worker_pb2.TokenLogprobs]] = field(default_factory=dict)
    judged: list[worker_pb2.TokenLogprobs] = field(default_factory=list)
    refused: list[worker_pb2.Refused] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    num_choices: int = 1
    first_index: dict[int, int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return bool(self.refused) or len(self.finishes) == self.num_choices

    async def over(self) -> "Answer":
        while not self.is_over:
            self.changed.clear()
            await self.changed.wait()
        return self

    async def first_token(self) -> None:
        while not self.tokens and not self.is_over:
            self.changed.clear()
            await self.changed.wait()


class FakeGateway:
    """Speaks the worker's stream as a gateway does, and checks that indexes are gapless.

    It does not number its own frames; `resume` asks for what it has missed on another stream.
    """

    def __init__(self, stream: MemoryStream, gateway_id: str) -> None:
        self.stream = stream
        self.gateway_id = gateway_id
        self.num_received = 0
        self.answers: dict[int, Answer] = {}
        self.others: list[worker_pb2.WorkerFrame] = []
        self.has_ended = asyncio.Event()
        self._last_handle = 0

    async def hello(self, protocol: int = PROTOCOL_VERSION) -> worker_pb2.WorkerHello:
        return await self._say_hello(protocol=protocol)

    async def resume(self, stream: MemoryStream) -> worker_pb2.WorkerHello:
        """Go on over another stream, as after a loss; `run` it when the worker agreed."""
        self.stream = stream
        return await self._say_hello(protocol=PROTOCOL_VERSION, num_received=self.num_received)

    async def _say_hello(self, **fields: Any) -> worker_pb2.WorkerHello:
        hello = worker_pb2.GatewayHello(gateway_id=self.gateway_id, link=1, **fields)
        await self.stream.write(worker_pb2.GatewayFrame(hello=hello))
        answer = await self.stream.read()
        return answer.hello

    async def submit(
        self, prompt: Iterable[int], part_tokens: int = 1_000_000, **fields: Any
    ) -> Answer:
        """`fields` are of Submit; those of Sampling are found by name."""
        self._last_handle += 1
        sampling = sampling_pb2.Sampling(
            num_choices=1, max_tokens=8, num_logprobs=-1, num_prompt_logprobs=-1
        )
        for name in list(fields):
            if name in ("stop_token_ids", "choices"):
                value = fields.pop(name)
                target = sampling.choices.values if name == "choices" else sampling.stop_token_ids
                target.extend(value)
            elif name in sampling.DESCRIPTOR.fields_by_name:
                setattr(sampling, name, fields.pop(name))
        ids = encode_tokens(list(prompt))
        submit = worker_pb2.Submit(
            request_id=fields.pop("request_id", f"request-{self._last_handle}"),
            epoch=fields.pop("epoch", 1),
            handle=self._last_handle,
            model_fp=fields.pop("model_fp", MODEL_FP),
            prompt_ids=ids,
            num_prompt_tokens=fields.pop("num_prompt_tokens", len(ids) // 4),
            cache_key=fields.pop("cache_key", b"k" * 32),
            sampling=sampling,
            prefill_endpoint=fields.pop("prefill_endpoint", PREFILL_ENDPOINT),
            initial_credit_tokens=fields.pop("initial_credit_tokens", 1000),
            **fields,
        )
        answer = Answer(
            handle=submit.handle,
            num_choices=sampling.num_choices,
            first_index={each.choice: len(each.token_ids) // 4 for each in submit.emitted},
        )
        self.answers[submit.handle] = answer
        for frame in _frames_of(submit, part_tokens):
            await self.stream.write(frame)
        return answer

    async def cancel(self, request_id: str, epoch: int = 1) -> None:
        cancel = worker_pb2.Cancel(request_id=request_id, epoch=epoch)
        await self.stream.write(worker_pb2.GatewayFrame(cancel=cancel))

    async def cancel_choices(self, handle: int, *choices: int) -> None:
        cancel = worker_pb2.CancelChoices(handle=handle, choices=choices)
        await self.stream.write(worker_pb2.GatewayFrame(cancel_choices=cancel))

    async def credit(self, handle: int, choice: int, up_to_index: int) -> None:
        credits = worker_pb2.Credits(handles=[handle], choices=[choice], up_to_index=[up_to_index])
        await self.stream.write(worker_pb2.GatewayFrame(credits=credits))

    async def run(self) -> None:
        stream = self.stream
        while (frame := await stream.read()) is not None and stream is self.stream:
            kind = frame.WhichOneof("frame")
            assert frame.seq in (0, self.num_received + 1), "a frame is missing or doubled"
            self.num_received = max(self.num_received, frame.seq)
            if kind == "step":
                self._take_step(frame.step)
            elif kind == "refused":
                self._answer(frame.refused.handle).refused.append(frame.refused)
            else:
                self.others.append(frame)
            if kind == "bye":
                break
        self.has_ended.set()

    def _take_step(self, step: worker_pb2.Step) -> None:
        for side in step.side:
            answer = self._answer(side.handle)
            assert not side.prompt_logprobs or 0 not in answer.tokens, "the prompt comes first"
            answer.judged += side.prompt_logprobs
        counts = step.counts or [1] * len(step.handles)
        start = 0
        columns = zip(step.handles, step.choices, step.first_index, counts, strict=True)
        for handle, choice, first_index, count in columns:
            answer = self._answer(handle)
            tokens = answer.tokens.setdefault(choice, [])
            before = answer.first_index.get(choice, 0)
            assert first_index == before + len(tokens), "a gap or a repeat"
            tokens += step.ids[start : start + count]
            start += count
        assert start == len(step.ids)
        for side in step.side:
            answer = self._answer(side.handle)
            answer.logprobs.setdefault(side.choice, []).extend(side.logprobs)
            if side.HasField("prefill"):
                answer.prefills[side.choice] = side.prefill
            if side.HasField("finish"):
                assert side.choice not in answer.finishes, "finished twice"
                answer.finishes[side.choice] = side.finish

    def _answer(self, handle: int) -> Answer:
        answer = self.answers[handle]
        answer.changed.set()
        return answer


def _frames_of(submit: worker_pb2.Submit, part_tokens: int) -> Iterable[worker_pb2.GatewayFrame]:
    """The submit and, for a long prompt, its continuation, earlier attempts' tokens included."""
    ids, size = submit.prompt_ids, part_tokens * 4
    submit.prompt_ids = ids[:size]
    emitted = list(submit.emitted)
    if len(ids) > size:
        del submit.emitted[:]
    yield worker_pb2.GatewayFrame(submit=submit)
    if len(ids) > size and emitted:
        part = worker_pb2.PromptPart(handle=submit.handle, emitted=emitted)
        yield worker_pb2.GatewayFrame(prompt_part=part)
    for start in range(size, len(ids), size):
        part = worker_pb2.PromptPart(handle=submit.handle, prompt_ids=ids[start : start + size])
        yield worker_pb2.GatewayFrame(prompt_part=part)


class Fleet:
    """A decode worker, a prefill worker and the streams to and between them; built by `fleet`.

    Set `to_prefill` and `to_decode` to tamper with handoff frames. It has an attribute for each
    part that tests speak to, and for each fault that they set.
    """

    def __init__(self, decode: Worker, prefill: Worker, runner: FakeRunner) -> None:
        self.decode = decode
        self.prefill = prefill
        self.runner = runner
        self.to_prefill: Tamper = pass_on
        self.to_decode: Tamper = pass_on
        # How long a frame to the decode worker takes.
        self.delay_s: Callable[[Any], float] = lambda frame: 0.0
        self.frames: list[Any] = []  # every handoff frame that was written, in order
        self.handoff_streams: list[MemoryStream] = []
        self.num_gateways = 0
        self.gateway: FakeGateway
        self.tasks: asyncio.TaskGroup

    def lone_run(self, prompt: Iterable[int], max_tokens: int = 8, **sampling: Any) -> list[int]:
        choice = sampling.pop("choice", 0)
        return self.runner.lone_run(prompt, SamplingParams(max_tokens, **sampling), choice)

    def kinds(self, kind: str) -> list[Any]:
        """Messages of all handoff frames of a kind."""
        return [getattr(f, kind) for f in self.frames if f.WhichOneof("frame") == kind]

    async def dial(self, endpoint: str) -> TamperedStream:
        if endpoint != PREFILL_ENDPOINT:
            raise StreamLost("connection refused")
        ours, theirs = memory_stream_pair()
        self.handoff_streams.append(ours)
        self.tasks.create_task(self.prefill.front.serve(theirs))
        arrive = self._recorded("to_decode")
        return TamperedStream(
            ours,
            self._recorded("to_prefill"),
            lambda frame: [parse(serialize(changed)) for changed in arrive(frame)],
            self.delay_s,
        )

    async def connect(self) -> FakeGateway:
        """A further gateway on the decode worker, after its hello."""
        self.num_gateways += 1
        gateway = FakeGateway(self.dial_decode(), f"gateway-{self.num_gateways}")
        await gateway.hello()
        self.tasks.create_task(gateway.run())
        return gateway

    def dial_decode(self) -> MemoryStream:
        """A fresh stream to the decode worker, before its hello."""
        ours, theirs = memory_stream_pair()
        self.tasks.create_task(self.decode.front.serve(theirs))
        return ours

    def hello(self, worker_id: str) -> handoff_pb2.DecodeHello:
        """What a further decode worker of the same model says first."""
        return handoff_pb2.DecodeHello(
            protocol=PROTOCOL_VERSION,
            worker_id=worker_id,
            model_fp=MODEL_FP,
            kv_spec=to_wire(self.runner.kv_spec),
            transports=["grpc"],
        )

    async def settle(self, within_s: float) -> None:
        """Wait until both engines hold nothing. Asserts that it happens in time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while self.decode.num_used_blocks or self.prefill.num_used_blocks:
            assert loop.time() < end_s, f"blocks still held after {within_s} s"
            await asyncio.sleep(STEP_S)
        await asyncio.sleep(STEP_S)
        self.decode.check()
        self.prefill.check()
        assert self.decode.deps.dispatcher.num_open == 0
        assert self.prefill.deps.dispatcher.num_open == 0

    def _recorded(self, direction: str) -> Tamper:
        def tamper(frame: Any) -> list[Any]:
            self.frames.append(frame)
            changed: list[Any] = getattr(self, direction)(frame)
            return changed

        return tamper


def make_worker(
    name: str, role: Any, clock: VirtualClock, runner: FakeRunner, **sizes: Any
) -> tuple[Engine, LocalEngineClient, WorkerDeps]:
    """`tokenizer_file` among the sizes lets it serve grammars, tried by a gate without a child;
    `handoff_dir` gives it a pool that peers can map, `agent` one that peers reach by NIXL."""
    tokenizer_file = sizes.pop("tokenizer_file", None)
    folder = sizes.pop("handoff_dir", None)
    agent, checksum_every = sizes.pop("agent", None), sizes.pop("checksum_every", 1)
    device = None
    if agent is not None:
        runner = DeviceFakeRunner(num_layers=len(runner.kv_spec.layers), copy_polls=3)
        device = DeviceReads(runner.kv_spec, runner, agent, ring_bytes=2 * MAX_DATA_BYTES)
    grammars = InlineGrammars(tokenizer_file, runner) if tokenizer_file else None
    sizes.setdefault("num_rows", sizes["num_blocks"])  # of a ring, if the runner has one
    config = EngineConfig(sizes.pop("model_fp", MODEL_FP), "fake", "1", **sizes)
    engine = Engine(config, runner, clock, grammars, device)
    with contextlib.ExitStack() as files:
        pool_file = None
        if folder is not None:
            pool_file = create_memory_file(name)
            files.callback(os.close, pool_file)
        client = LocalEngineClient(engine, clock, lambda batch: STEP_S, pool_file)
    deps = make_parts(
        client,
        worker_id=name,
        role=role,
        clock=clock,
        handoff=HandoffOptions(_transports(agent), folder, checksum_every),
        random_bytes=random.Random(name).randbytes,
    )
    return engine, client, replace(deps, grammar_gate=InlineGate(client.info))


def _transports(agent: NixlAgent | None) -> tuple[str, ...]:
    return ("shm", "grpc") if agent is None else ("nixl", "grpc")


@asynccontextmanager
async def fleet(
    *,
    decode_sizes: dict[str, Any] | None = None,
    prefill_sizes: dict[str, Any] | None = None,
    runner_options: dict[str, Any] | None = None,
    prefill_runner_options: dict[str, Any] | None = None,
    handoff_dir: Path | None = None,
    is_ahead: bool = False,
) -> AsyncIterator[Fleet]:
    """A running fleet with one connected gateway; must run on a VirtualLoop.

    With `handoff_dir`, or the folder in HANDOFF_DIR, the workers hand blocks over in shared memory.
    With `is_ahead`, steps of the decode worker begin before the last one has finished.
    """
    handoff_dir = handoff_dir or HANDOFF_DIR
    clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
    options = runner_options or {}
    runner = AheadFakeRunner(**options) if is_ahead else FakeRunner(**options)
    sizes = {"num_blocks": 64, "max_step_tokens": 64, "handoff_dir": handoff_dir}
    d_engine, d_client, d_parts = make_worker(
        "decode-1", router_pb2.WORKER_ROLE_DECODE, clock, runner, **sizes | (decode_sizes or {})
    )
    p_engine, p_client, p_parts = make_worker(
        "prefill-1",
        router_pb2.WORKER_ROLE_PREFILL,
        clock,
        FakeRunner(**(prefill_runner_options or options)),
        **sizes | (prefill_sizes or {}),
    )
    prefill = Worker(p_engine, p_client, p_parts, PrefillFront(p_parts))
    built = Fleet(Worker(d_engine, d_client, d_parts, None), prefill, runner)
    built.decode.front = DecodeFront(d_parts, built.dial)
    async with _closing(d_client, p_client), asyncio.TaskGroup() as tasks:
        built.tasks = tasks
        running = [tasks.create_task(prefill.front.run())]
        running.append(tasks.create_task(built.decode.front.run()))
        built.gateway = await built.connect()
        yield built
        await built.decode.front.drain(1.0)
        await prefill.front.drain(1.0)
        for task in running:
            task.cancel()


@asynccontextmanager
async def _closing(*clients: LocalEngineClient) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for client in clients:
            await client.close()


def blocks_frames(frames: list[Any]) -> list[handoff_pb2.Blocks]:
    return [f.blocks for f in frames if f.WhichOneof("frame") == "blocks"]
