"""Workers on virtual time: real block pools with their prefix caches, times from fixed rates.

A prefill worker computes one prompt after the other. A decode worker takes a prompt's blocks over
and runs all its sequences together. Both report as real workers do: at most every PACE_S while they
work, every HEARTBEAT_S else.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.kv.block_pool import BlockPool, KvEventLog
from baton.engine.protocol.cache_messages import StoredBlocks
from baton.system.clock import Clock
from baton.wire.v1 import router_pb2, worker_pb2
from bench.router.traces import BLOCK_SIZE, Arrival

PACE_S = 0.05
HEARTBEAT_S = 0.25
MODEL_FP = "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The rates and sizes of one worker: by default those of an 8 B model on a GPU of 80 GB."""

    prefill_tokens_per_s: float
    num_blocks: int = 2048
    max_num_seqs: int = 256
    block_bytes: int = BLOCK_SIZE * 131_072
    idle_step_s: float = 0.02
    batch_doubling: float = 16.0
    handoff_bytes_per_s: float = 20e9
    handoff_s: float = 0.01

    def step_s(self, batch: int) -> float:
        """The time of a decode step with so many sequences."""
        return self.idle_step_s * (1 + batch / self.batch_doubling)


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way: who waits for its prefill, and what was computed for it."""

    request_id: str
    arrival: Arrival
    # The client leaves when its first token cannot come by then, on the loop's clock.
    due_at: float | None = None
    prefilled: asyncio.Event = field(default_factory=asyncio.Event)
    num_expected: int = 0
    num_computed: int = 0


class BlockCache:
    """A block pool with the tables of the requests that hold blocks in it."""

    def __init__(self, num_blocks: int) -> None:
        self._events = KvEventLog()
        self._pool = BlockPool(num_blocks, self._events)

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def match(self, hashes: Sequence[bytes]) -> int:
        """Count the prompt's first blocks that are cached."""
        for depth, block_hash in enumerate(hashes):
            if self._pool.find(block_hash) is None:
                return depth
        return len(hashes)

    def take(self, hashes: Sequence[bytes], num_blocks: int) -> list[int] | None:
        """Hold a table of so many blocks, cached ones first; None without room for it."""
        depth = self.match(hashes)
        cached = [self._pool.find(each) for each in hashes[:depth]]
        held = [block for block in cached if block is not None]
        num_idle = sum(map(self._pool.is_idle, held))
        if num_blocks - depth + num_idle > self._pool.num_free:
            return None
        for block in held:
            self._pool.retain(block)
        return held + self._pool.allocate(num_blocks - depth)

    def register(self, hashes: Sequence[bytes], table: Sequence[int]) -> None:
        """Let others hit the table's full blocks."""
        parent = b""
        for block_hash, block in zip(hashes, table, strict=False):
            self._pool.register(block, block_hash, parent)
            parent = block_hash

    def release(self, table: list[int]) -> None:
        """End a table; its deepest blocks are evicted first."""
        self._pool.release(table[::-1])

    def take_events(self) -> tuple[bytes, list[StoredBlocks]]:
        """Return what left and what entered the cache since the last call."""
        return self._events.take()


class PrefillWorker:
    """Computes prompts in turn, each without the part that its cache holds by then."""

    role = router_pb2.WORKER_ROLE_PREFILL

    def __init__(self, name: str, machine: Machine, clock: Clock) -> None:
        self.name = name
        self.machine = machine
        self.cache = BlockCache(machine.num_blocks)
        self.num_submitted = 0
        self.num_computed = 0
        self.num_done = 0
        self.accepted: list[str] = []
        self.changed = asyncio.Event()
        self._clock = clock
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._ends_at = 0.0
        self._work = asyncio.Event()

    def submit(self, job: Job) -> None:
        missing = len(job.arrival.hashes) - self.cache.match(job.arrival.hashes)
        partial = job.arrival.num_prompt_tokens - len(job.arrival.hashes) * BLOCK_SIZE
        job.num_expected = max(1, missing * BLOCK_SIZE + partial)
        self._waiting.append(job)
        self.num_submitted += 1
        self.accepted.append(job.request_id)
        self.changed.set()
        self._work.set()

    def leave(self, job: Job) -> None:
        """Forget a prompt whose client has left, unless it is computed already."""
        if job in self._waiting:
            self._waiting.remove(job)
            self.changed.set()

    @property
    def jobs(self) -> list[Job]:
        """The prompts that wait or are computed."""
        return [*([self._running] if self._running else []), *self._waiting]

    @property
    def queued_tokens(self) -> int:
        """Uncached prompt tokens that wait or are computed."""
        left_s = max(0.0, self._ends_at - self._clock.now()) if self._running else 0.0
        tokens = sum(job.num_expected for job in self._waiting)
        return tokens + round(left_s * self.machine.prefill_tokens_per_s)

    async def run(self) -> None:
        while True:
            while not self._waiting:
                self._work.clear()
                await self._work.wait()
            await self._compute(self._waiting.popleft())

    async def _compute(self, job: Job) -> None:
        arrival = job.arrival
        depth = self.cache.match(arrival.hashes)
        table = self.cache.take(arrival.hashes, arrival.num_prompt_tokens // BLOCK_SIZE + 1)
        assert table is not None, "the replay leaves out prompts that are larger than a pool"
        job.num_computed = max(1, arrival.num_prompt_tokens - depth * BLOCK_SIZE)
        self.num_computed += job.num_computed
        seconds = job.num_computed / self.machine.prefill_tokens_per_s
        self._running, self._ends_at = job, self._clock.now() + seconds
        await asyncio.sleep(seconds)
        self.cache.register(arrival.hashes, table)
        self.cache.release(table)
        self._running = None
        self.num_done += 1
        job.prefilled.set()
        self.changed.set()

    def load(self) -> worker_pb2.Load:
        return worker_pb2.Load(
            num_running=int(self._running is not None),
            num_waiting=len(self._waiting),
            num_blocks_total=self.machine.num_blocks,
            num_blocks_free=self.cache.num_free,
            num_queued_prefill_tokens=self.queued_tokens,
            # A rate that stays the same counts as not measured again.
            prefill_tokens_per_s=self.machine.prefill_tokens_per_s + 1e-3 * (self.num_done % 2),
        )

    @property
    def is_busy(self) -> bool:
        return self._running is not None


class DecodeWorker:
    """Takes prompts over and runs them; holds their blocks from the moment they are accepted."""

    role = router_pb2.WORKER_ROLE_DECODE

    def __init__(self, name: str, machine: Machine, clock: Clock) -> None:
        self.name = name
        self.machine = machine
        self.cache = BlockCache(machine.num_blocks)
        self.accepted: list[str] = []
        self.changed = asyncio.Event()
        self.num_sequences = 0
        self._clock = clock
        self._num_running = 0
        self._num_promised = 0
        self._left = asyncio.Event()

    def submit(self, job: Job) -> None:
        self.num_sequences += 1
        self.accepted.append(job.request_id)
        self.changed.set()

    async def serve(self, job: Job) -> float | None:
        """Take the prompt over when it is computed and decode it; returns the time of its first
        token here, or None when the client has left before."""
        try:
            async with asyncio.timeout_at(job.due_at):
                table, num_missing = await self._prefilled(job)
        except TimeoutError:
            self.num_sequences -= 1
            self.changed.set()
            return None
        return await self._decode(job, table, num_missing)

    async def _prefilled(self, job: Job) -> tuple[list[int], int]:
        """Hold the request's blocks until its prompt is computed; returns them, and how many of
        the prompt's were missing here."""
        arrival = job.arrival
        num_tokens = arrival.num_prompt_tokens + arrival.num_output_tokens
        num_blocks = min(-(-num_tokens // BLOCK_SIZE), self.machine.num_blocks)
        while (table := self.cache.take(arrival.hashes, num_blocks)) is None:
            self._left.clear()
            await self._left.wait()
        num_missing = arrival.num_prompt_tokens // BLOCK_SIZE - self.cache.match(arrival.hashes)
        self._num_promised += num_blocks
        try:
            await job.prefilled.wait()
        except asyncio.CancelledError:
            self._num_promised -= num_blocks
            self.cache.release(table)
            self._left.set()
            raise
        return table, num_missing

    async def _decode(self, job: Job, table: list[int], num_missing: int) -> float:
        arrival, machine = job.arrival, self.machine
        seconds = num_missing * machine.block_bytes / machine.handoff_bytes_per_s
        await asyncio.sleep(machine.handoff_s + seconds)
        self.cache.register(arrival.hashes, table)
        self._num_promised -= len(table)
        self._num_running += 1
        self.changed.set()
        step_s = machine.step_s(self._num_running)
        first_at = self._clock.now() + step_s
        await asyncio.sleep(step_s * arrival.num_output_tokens)
        self._num_running -= 1
        self.num_sequences -= 1
        self.cache.release(table)
        self._left.set()
        self.changed.set()
        return first_at

    def load(self) -> worker_pb2.Load:
        return worker_pb2.Load(
            num_running=self._num_running,
            num_waiting=self.num_sequences - self._num_running,
            num_blocks_total=self.machine.num_blocks,
            num_blocks_free=self.cache.num_free + self._num_promised,
            num_blocks_promised=self._num_promised,
            prefill_tokens_per_s=self.machine.prefill_tokens_per_s,
            decode_step_s=self.machine.step_s(self._num_running),
            handoff_bytes_per_s=self.machine.handoff_bytes_per_s,
            handoff_s=self.machine.handoff_s,
        )

    @property
    def is_busy(self) -> bool:
        return self.num_sequences > 0


Worker = PrefillWorker | DecodeWorker
