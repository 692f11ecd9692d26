"""A whole fleet in one process on virtual time: every service's real domain code, joined in memory.

What is not real: sockets (a virtual network), processes (one event loop), the model (FakeRunner,
whose tokens depend on every token before them and whose KV slots are checked at each step), Redis
(an in-process double that runs the real Lua). All is seeded; the same seed gives the same run.
Workers can crash, lose their core, stand still, drain, and come back as a new life on the same
address; every stream can be cut.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from baton.engine.protocol.batch import StepBatch
from baton.engine.protocol.client import CoreDied
from baton.engine.protocol.messages import SamplingParams
from baton.engine.step.engine import Engine, EngineConfig
from baton.handoff import frame_codec
from baton.runtime.discovery.discover import FixedMembers
from baton.runtime.shared_stream import StreamLost
from baton.testing.fake_runner import FakeRunner
from baton.testing.inline_grammars import InlineGate, InlineGrammars
from baton.testing.local_client import LocalEngineClient
from baton.testing.redis_server import RedisDouble
from baton.testing.virtual_clock import VirtualClock
from baton.testing.virtual_network import VirtualNetwork, VirtualStream, stop_process
from baton.wire import key_limits, key_registry
from baton.wire.failures import Unavailable
from baton.wire.v1 import quota_pb2, router_pb2, tokenizer_pb2
from baton.worker.deps import WorkerDeps
from baton.worker.program import make_parts
from baton.worker.reports_servicer import serve_reports
from services.decode_worker.front import DecodeFront
from services.gateway.clients.protocols import CallContext
from services.gateway.endpoints import ENDPOINTS
from services.gateway.gateway import Clients, Gateway, GatewayIdentity
from services.gateway.request.incoming import IncomingRequest
from services.prefill_worker.front import PrefillFront
from services.quota.archive import Archiver
from services.quota.ledger import Ledger
from services.quota.registry import Registry
from services.quota.store import RedisStore
from services.quota.worker_archive import WorkerArchive
from services.router.router_core import RouterCore
from services.router.settings import Settings as RouterSettings
from services.router.watcher import PeerWatcher, Watcher
from services.tokenizer.encoder import EncodeLimits, Encoder
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.model_folder import ModelFolder, read_model_folder
from services.tokenizer.served_model import ServedModel, load_model
from tests.kit.in_process_renderer import InProcessRenderer
from tests.unit.gateway.fakes import InlineParser, MemoryFiles

SECRET = bytes(range(32))

VOCAB_SIZE = 1000
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
POISON = 0xDB
STEP_S = 0.005
TOKEN_S = 0.0002
# Between two zones, one way.
FAR_S = 0.02


def make_model_folder(folder: Path, pooling: str = "") -> Path:
    """A tokenizer over bytes and made-up words: all that the tokenizer service needs. `pooling`:
    that of an embedding model."""
    folder.mkdir()
    control = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    symbols = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = [f"w{number}" for number in range(VOCAB_SIZE - len(symbols))]
    vocab = {symbol: index for index, symbol in enumerate(symbols + words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(control)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"vocab_size": VOCAB_SIZE, "eos_token_id": VOCAB_SIZE - 1, "hidden_size": 4}
    if pooling:
        (folder / "modules.json").write_text('[{"type": "Pooling", "path": "1_Pooling"}]')
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(f'{{"pooling_mode": "{pooling}"}}')
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "model.safetensors").write_bytes(b"none")
    return folder


async def run_inline(function: Callable[..., Any], *arguments: Any) -> Any:
    """`run_in_thread` of a world without threads."""
    return function(*arguments)


class HandoffStream:
    """The dialling end of a handoff: its frames come as they are on the wire."""

    def __init__(self, stream: VirtualStream) -> None:
        self._stream = stream
        self.write = stream.write
        self.close = stream.close

    async def read(self) -> Any:
        frame = await self._stream.read()
        return None if frame is None else frame_codec.parse(frame_codec.serialize(frame))


class LocalQuota:
    """The gateway's QuotaClient over a Ledger in the same process."""

    def __init__(self, ledger: Ledger, dial_renewals: Callable[[], VirtualStream]) -> None:
        self.ledger = ledger
        self._dial_renewals = dial_renewals
        self.settled: list[quota_pb2.UsageRecord] = []

    async def authenticate(
        self, key_digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        return await self.ledger.authenticate(quota_pb2.AuthenticateRequest(key_digest=key_digest))

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        return await self.ledger.reserve(request)

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        await self.ledger.settle(quota_pb2.SettleRequest(usage=record))
        self.settled.append(record)

    async def open_renewals(self) -> VirtualStream:
        return self._dial_renewals()

    async def answer_renewals(self, stream: VirtualStream) -> None:
        while (request := await stream.read()) is not None:
            await stream.write(await self.ledger.renew(request))

    async def probe(self, deadline_s: float) -> None:
        return None


class LocalTokenizer:
    """The gateway's TokenizerClient over an Encoder in the same process; `begin` is its next
    life."""

    def __init__(self, models: ModelTable, clock: VirtualClock) -> None:
        self._clock = clock
        self.prompts: dict[str, list[int]] = {}
        self.begin(models)

    def begin(self, models: ModelTable) -> None:
        self._models = models
        self._encoder = Encoder(models, EncodeLimits(), self._clock, run_inline)

    async def encode(
        self, request: tokenizer_pb2.EncodeRequest, context: CallContext
    ) -> tokenizer_pb2.EncodeResponse:
        response = await self._encoder.encode(request)
        ids = memoryview(response.token_ids).cast("I").tolist()
        self.prompts[context.request_id] = ids
        return response

    async def artifact(self, model_fp: str) -> bytes:
        return (await self._models.find(model_fp)).artifact.data

    async def probe(self, deadline_s: float) -> None:
        return None


class LocalRouter:
    """The gateway's RouterClient over a RouterCore in the same process, if one runs."""

    def __init__(self) -> None:
        self.core: RouterCore | None = None
        self.life: asyncio.Task[None] | None = None
        self.picks: list[router_pb2.PickResponse] = []

    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        response = await self._running().pick(request, context.deadline_s)
        self.picks.append(response)
        return response

    async def cancel(self, request: router_pb2.CancelRequest, context: CallContext) -> None:
        self._running().cancel(request)

    async def watch_admission(self) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        async for view in self._running().watch_admission(takes_deltas=True):
            yield view

    def _running(self) -> RouterCore:
        if self.core is None:
            raise Unavailable("connection refused")
        return self.core


@dataclass
class Worker:
    """One life of a worker: engine, front, and its address."""

    name: str
    endpoint: str
    engine: Engine
    client: LocalEngineClient
    deps: WorkerDeps
    front: DecodeFront | PrefillFront
    # Everything of its process: cancelling it is a kill.
    life: asyncio.Task[None] | None = None
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    def check(self) -> None:
        self.engine.check_integrity()
        self.front.check_integrity()

    @property
    def num_blocks_held(self) -> int:
        load = self.engine.measure_load()
        return self.engine.info.num_blocks - load.num_blocks_free + load.num_blocks_promised


@dataclass
class Answer:
    """The Sink of one request."""

    gone_reason = "cancelled"
    gone_s: float | None = None
    has_left = False

    texts: dict[int, str] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    usage: Any = None
    num_batches: int = 0
    pause_s: Callable[[], float] = lambda: 0.0

    def opened(self, identity: Any, request: Any) -> "Answer":
        return self

    async def started(self, head: Any) -> None:
        return None

    async def deltas(self, batch: list[Any]) -> None:
        self.take(batch)
        if pause_s := self.pause_s():
            await asyncio.sleep(pause_s)

    def offer(self, batch: list[Any], now_s: float) -> bool:
        if self.pause_s():
            return False
        self.take(batch)
        return True

    def take(self, batch: list[Any]) -> None:
        self.num_batches += 1
        for delta in batch:
            self.texts[delta.choice] = self.texts.get(delta.choice, "") + delta.text
            if delta.finish_reason:
                self.finish_reasons[delta.choice] = delta.finish_reason

    async def finished(self, usage: Any, head: Any) -> None:
        self.usage = usage


class Fleet:
    """Gateway, quota, tokenizer, router, `num_prefill` and `num_decode` workers.

    It has an attribute for each process of a deployment, and for what connects them.
    """

    def __init__(
        self, seed: int, clock: VirtualClock, model: ServedModel, max_delay_s: float = 0.0
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.model = model
        self.network = VirtualNetwork(random.Random(seed), clock, max_delay_s)
        self.workers: dict[str, Worker] = {}
        self._tasks = asyncio.TaskGroup()
        self._num_blocks = 0
        self.num_slots = 64
        # Workers enforce the forms of answers.
        self.has_grammars = False
        # The zone of a process by its name; empty = not known.
        self.zone_of: Callable[[str], str] = lambda name: ""
        # Where usage is archived; None = nowhere.
        self.usage_dir: Path | None = None

    async def start(
        self, num_prefill: int, num_decode: int, num_blocks: int, num_routers: int = 1
    ) -> None:
        """Build everything and wait until the gateway is ready."""
        self._detokenizer = Tokenizer.from_file(
            str(Path(self.model.folder.where) / "tokenizer.json")
        )
        self.runner = self._make_runner()
        self._num_blocks = num_blocks
        names = [f"prefill-{n}" for n in range(num_prefill)]
        names += [f"decode-{n}" for n in range(num_decode)]
        endpoints = {f"sim:{number + 1}": name for number, name in enumerate(names)}
        self._names = endpoints
        self.network.way_s = self._way_s
        for endpoint, name in endpoints.items():
            self.start_worker(name, endpoint)
        self._endpoints = FixedMembers(endpoints)
        self.routers = {f"router-{number}": LocalRouter() for number in range(num_routers)}
        for name in self.routers:
            self.start_router(name)
        self.api_key, self.quota = await self._make_quota()
        self.tokenizer = LocalTokenizer(ModelTable([self.model], self.clock), self.clock)
        clients = Clients(
            self.quota,
            self.tokenizer,
            self.routers,
            self._dial_decode,
            MemoryFiles(),
            run_inline,
            InlineParser(),
        )
        identity = GatewayIdentity("gw", (SECRET,), self.zone_of("gateway"))
        self.gateway = Gateway(clients, identity, self.clock, self.rng)
        self._run(self.gateway.run())
        async with asyncio.timeout(60):
            while self.gateway.unready_reasons():
                await asyncio.sleep(0.05)

    async def ask(
        self,
        text: str,
        answer: Answer | None = None,
        first_token_s: float | None = None,
        **fields: Any,
    ) -> Answer:
        """One chat request through the whole fleet; `path` of a completion asks for that, and of
        embeddings for the vectors of `texts`. `api_key` is another tenant's."""
        answer = answer or Answer()
        path = fields.pop("path", "/v1/chat/completions")
        api_key = fields.pop("api_key", self.api_key)
        chat = {"messages": [{"role": "user", "content": text}]}
        prompt = chat if "chat" in path else {"prompt": text}
        if path == "/v1/embeddings":
            prompt = {"input": fields.pop("texts")}
        body = {"model": "sim", **prompt, **fields}
        request_id = fields.pop("request_id", f"r{self.rng.getrandbits(64):x}")
        body.pop("request_id", None)

        async def read_body(need: object) -> bytes:
            return msgspec.json.encode(body)

        arrival = IncomingRequest(
            request_id,
            ENDPOINTS[path],
            read_body,
            f"Bearer {api_key}",
            deadline_s=600,
            first_token_s=first_token_s,
        )
        await self.gateway.pipeline.run(arrival, answer)
        return answer

    async def new_key(self, tenant: str) -> str:
        """Make a key of this tenant, without limits."""
        key, record = key_registry.new_key(
            SECRET, tenant, key_limits.KeyLimits(), now_unix_s=0, random=self.rng.randbytes
        )
        await self._store.execute_all(key_registry.redis_commands(record))
        return key

    def expected(self, request_id: str, max_tokens: int, seed: int, choice: int = 0) -> str:
        """The text that this request must get, whatever happens around it."""
        params = SamplingParams(max_tokens, temperature=1.0, seed=seed)
        ids = self.runner.lone_run(self.tokenizer.prompts[request_id], params, choice)
        text = self._detokenizer.decode(ids, skip_special_tokens=True)
        # However many bytes of a character are missing at the end, the gateway sends one U+FFFD.
        whole = text.rstrip("\ufffd")
        return text if whole == text else whole + "\ufffd"

    async def quiet(self) -> None:
        """Wait until no worker holds a block; fails when some stay held."""
        async with asyncio.timeout(30):
            while any(worker.num_blocks_held for worker in self.workers.values()):
                await asyncio.sleep(0.05)
        for worker in self.workers.values():
            worker.check()
        for router in self.routers.values():
            if router.core is not None:
                router.core.check_integrity()

    @property
    def local_router(self) -> LocalRouter:
        """The only one, or the first."""
        return next(iter(self.routers.values()))

    @property
    def router(self) -> RouterCore:
        """What runs there."""
        assert self.local_router.core is not None
        return self.local_router.core

    # Faults.

    def start_worker(self, name: str, endpoint: str) -> None:
        """A worker process, or the next life of one that has ended."""
        worker = self._make_worker(name, endpoint)
        worker.life = self._tasks.create_task(self._live(worker))

    def kill(self, endpoint: str) -> Worker:
        """Its core dies; the front tells its peers and leaves."""
        worker = self.workers.pop(endpoint)
        worker.client.kill()
        return worker

    def kill_process(self, endpoint: str) -> Worker:
        """All of it is gone at once, as after SIGKILL."""
        worker = self.workers.pop(endpoint)
        assert worker.life is not None
        self._cut_all(endpoint)
        worker.life.cancel()
        return worker

    async def drain(self, endpoint: str, cap_s: float) -> Worker:
        """As after SIGTERM: it finishes or hands over what runs, then leaves."""
        worker = self.workers[endpoint]
        await worker.front.drain(cap_s)
        worker.deps.reports.close()
        if self.workers.get(endpoint) is worker:
            self.kill_process(endpoint)
        return worker

    async def stop(self, endpoint: str, seconds: float) -> None:
        """As SIGSTOP and, so much later, SIGCONT do to the process."""
        worker = self.workers[endpoint]
        worker.client.stop()
        try:
            await stop_process(self.network, endpoint, seconds)
        finally:
            worker.client.go_on()

    async def stop_core(self, endpoint: str, seconds: float) -> None:
        """The core stands still; the front goes on."""
        worker = self.workers[endpoint]
        worker.client.stop()
        await asyncio.sleep(seconds)
        worker.client.go_on()

    def start_router(self, name: str) -> None:
        """A router process, or the next life of one that was killed."""
        router = self.routers[name]
        peers = tuple(f"{each}:1" for each in self.routers)
        settings = RouterSettings(router_id=name, zone=self.zone_of(name), peers=peers)
        router.core = RouterCore(settings, self.clock, self.rng)
        watcher = Watcher(router.core, partial(self._dial_reports, name), self.clock, self.rng)
        peer_watcher = PeerWatcher(router.core, name, partial(self._dial_router, name), self.rng)

        async def live() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watcher.run(self._endpoints))
                tasks.create_task(peer_watcher.run(FixedMembers(self.routers)))

        router.life = self._tasks.create_task(live())

    def kill_router(self, name: str) -> None:
        """What it knew is gone."""
        router = self.routers[name]
        assert router.core is not None
        assert router.life is not None
        router.core.close()
        router.life.cancel()
        router.core = None
        self._cut_all(name)

    async def lose_redis_data(self) -> None:
        """Redis comes back empty; the registry declares the keys anew, as it then does."""
        await self._store.execute("FLUSHALL")
        await self._store.execute_all(key_registry.redis_commands(self._record))

    def _way_s(self, caller: str, callee: str) -> float:
        zones = {self.zone_of(self._names.get(each, each)) for each in (caller, callee)} - {""}
        return FAR_S if len(zones) > 1 else 0.0

    def _run(self, work: Awaitable[None]) -> None:
        self._tasks.create_task(work)  # type: ignore[arg-type]

    def _make_runner(self) -> FakeRunner:
        pooling = self.model.folder.pooling
        return FakeRunner(vocab_size=VOCAB_SIZE, max_model_len=2048, pooling=pooling)

    def _make_worker(self, name: str, endpoint: str) -> Worker:
        fingerprint, num_blocks = self.model.folder.fingerprint, self._num_blocks
        config = EngineConfig(fingerprint, "sim", "local", num_blocks, self.num_slots)
        runner = self._make_runner()
        file = Path(self.model.folder.where) / "tokenizer.json"
        grammars = InlineGrammars(file, runner) if self.has_grammars else None
        engine = Engine(config, runner, self.clock, grammars)
        client = LocalEngineClient(engine, self.clock, lambda batch: poison_and_time(worker, batch))
        is_prefill = name.startswith("prefill")
        role = router_pb2.WORKER_ROLE_PREFILL if is_prefill else router_pb2.WORKER_ROLE_DECODE
        deps = make_parts(
            client,
            worker_id=name,
            role=role,
            clock=self.clock,
            zone=self.zone_of(name),
            random_bytes=self.rng.randbytes,
        )
        if self.has_grammars:
            info = msgspec.structs.replace(client.info, tokenizer_file=str(file))
            deps = replace(deps, grammar_gate=InlineGate(info))
        front = (
            PrefillFront(deps)
            if is_prefill
            else DecodeFront(deps, partial(self._dial_prefill, endpoint))
        )
        worker = Worker(name, endpoint, engine, client, deps, front)
        return worker

    async def _make_quota(self) -> tuple[str, LocalQuota]:
        api_key, record = key_registry.new_key(
            SECRET, "acme", key_limits.KeyLimits(), now_unix_s=0, random=self.rng.randbytes
        )
        self._record = record
        self._store = RedisStore(RedisDouble())
        await self._store.execute_all(key_registry.redis_commands(record))
        registry = Registry(self._store, [])
        self.archives: tuple[Archiver, WorkerArchive] | None = None
        if self.usage_dir is not None:
            archiver = Archiver(self._store, self.usage_dir, token="sim", run_blocking=_at_once)
            workers = WorkerArchive(self.usage_dir, self.clock.unix, run_blocking=_at_once)
            self.archives = archiver, workers
        ledger = Ledger(
            self._store,
            registry,
            on_settled=self.archives[0].wake if self.archives else lambda tenant: None,
            on_workers=self.archives[1].note if self.archives else lambda workers: None,
            clock_ms=lambda: round(self.clock.unix() * 1000),
        )
        return api_key, LocalQuota(ledger, self._dial_renewals)

    async def _dial_decode(self, endpoint: str) -> VirtualStream:
        return self._dial("gateway", endpoint, "attempts")

    async def _dial_prefill(self, caller: str, endpoint: str) -> "HandoffStream":
        return HandoffStream(self._dial(caller, endpoint, "handoff"))

    def _dial(self, caller: str, endpoint: str, kind: str) -> VirtualStream:
        if endpoint not in self.workers:
            raise StreamLost("connection refused")
        worker = self.workers[endpoint]
        front = worker.front
        ours, theirs = self.network.connect(caller, endpoint, kind)
        stands_in = kind == "attempts" and isinstance(front, PrefillFront)
        serve = front.serve_gateway if stands_in else front.serve
        self._serve(worker.tasks, serve(theirs), theirs)
        return ours

    def _dial_reports(self, router: str, endpoint: str) -> VirtualStream:
        ours, theirs = self.network.connect(router, endpoint, "reports")
        if (worker := self.workers.get(endpoint)) is None:
            theirs.cancel()
            return ours
        self._serve(worker.tasks, serve_reports(theirs, worker.deps.reports), theirs)
        return ours

    def _dial_router(self, caller: str, name: str) -> VirtualStream:
        ours, theirs = self.network.connect(caller, name, "peers")
        if (core := self.routers[name].core) is None:
            theirs.cancel()
            return ours

        async def tell() -> None:
            async for news in core.follow_news():
                await theirs.write(news)

        self._serve(self._tasks, tell(), theirs)
        return ours

    def _dial_renewals(self) -> VirtualStream:
        ours, theirs = self.network.connect("gateway", "quota", "renewals")
        self._serve(self._tasks, self.quota.answer_renewals(theirs), theirs)
        return ours

    def _serve(
        self, tasks: asyncio.TaskGroup, serving: Awaitable[None], stream: VirtualStream
    ) -> None:
        async def handle() -> None:
            try:
                await serving
            except StreamLost:
                pass
            finally:
                await stream.close()

        stream.link.handler = tasks.create_task(handle())

    def _cut_all(self, place: str) -> None:
        for link in self.network.links(place):
            link.cut()

    async def _live(self, worker: Worker) -> None:
        """One process, until it is cancelled or its core dies."""
        try:
            async with worker.tasks:
                self.workers[worker.endpoint] = worker
                await worker.front.run()
        except* CoreDied:
            self._cut_all(worker.endpoint)


def poison_and_time(worker: Worker, batch: StepBatch) -> float:
    """Before a step: spoil what every free block holds that no prefix hit can find, so that a read
    of it breaks FakeRunner's chain; returns the step's seconds."""
    blank = worker.engine._state.manager._pool._blank
    rows = np.frombuffer(worker.client.pool, np.uint8).reshape(worker.engine.info.num_blocks, -1)
    rows[list(blank)] = POISON
    return STEP_S + TOKEN_S * len(batch.token_ids)


async def _at_once(work: Callable[[], None]) -> None:
    work()


async def load_sim_model(folder: Path, pooling: str = "") -> ServedModel:
    """The tokenizer's model; the same for every fleet."""
    return await load_folder(read_model_folder(make_model_folder(folder / "sim", pooling), "sim"))


async def load_folder(folder: ModelFolder) -> ServedModel:
    """A model as tokenizers of the simulation load it."""

    async def renderer(setup: Any) -> InProcessRenderer:
        return InProcessRenderer(setup, lambda: datetime.now(UTC))

    return await load_model(folder, renderer, run_inline, random.Random(0).randbytes)


@asynccontextmanager
async def fleet_of(
    seed: int,
    clock: VirtualClock,
    model: ServedModel,
    *,
    num_prefill: int = 1,
    num_decode: int = 2,
    num_blocks: int = 512,
    max_delay_s: float = 0.0,
    num_routers: int = 1,
    num_slots: int = 64,
    has_grammars: bool = False,
    usage_dir: Path | None = None,
    zone_of: Callable[[str], str] = lambda name: "",
) -> AsyncIterator[Fleet]:
    """A fleet that is ready; its workers run `num_slots` sequences at once."""
    fleet = Fleet(seed, clock, model, max_delay_s)
    fleet.num_slots = num_slots
    fleet.has_grammars = has_grammars
    fleet.usage_dir = usage_dir
    fleet.zone_of = zone_of
    async with fleet._tasks as tasks:
        await fleet.start(num_prefill, num_decode, num_blocks, num_routers)
        yield fleet
        for task in list(tasks._tasks):
            task.cancel()


@asynccontextmanager
async def running_fleet(
    seed: int, clock: VirtualClock, folder: Path, pooling: str = "", **sizes: Any
) -> AsyncIterator[Fleet]:
    """A fleet with a model of its own; at the end nothing may be held anywhere."""
    model = await load_sim_model(folder, pooling)
    async with fleet_of(seed, clock, model, **sizes) as fleet:
        yield fleet
        await fleet.quiet()
