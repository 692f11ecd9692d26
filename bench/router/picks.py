"""The CPU time of one pick, one report and one view, and the memory of the index, by fleet size.

A fleet on paper: half of the workers prefill, half decode, each with a third of its batch running.
All hold the same 32 blocks (a system prompt) and some of their own. A prompt begins with
those, goes on with blocks that one prefill and one decode worker hold, and ends with new ones.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from baton.system.clock import Clock
from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from services.router.fleet.prefix_index import PrefixIndex, hashes_of
from services.router.router_core import RouterCore
from services.router.settings import Settings

NUM_WORKERS = (8, 100, 256, 1000)
PROMPT_TOKENS = (1_000, 16_000, 100_000)
_BLOCK_SIZE = 16
_NUM_COMMON = 32
_NUM_BLOCKS = 1 << 16
# Blocks that one worker of each role holds and no other.
_NUM_OWN = 5_000
_MODEL = "picked"


@dataclass(slots=True)
class PaperClock(Clock):
    """Stands still unless it is moved."""

    at_s: float = 0.0

    def now(self) -> float:
        return self.at_s

    def unix(self) -> float:
        return self.at_s


class PaperFleet:
    """A router that knows workers which are not there."""

    def __init__(
        self,
        num_workers: int,
        num_own: int,
        random: Random,
        settings: Settings | None = None,
        clock: Clock | None = None,
        prefill_tokens_per_s: float = 8000.0,
    ) -> None:
        self.clock = PaperClock()
        self.core = RouterCore(settings or Settings(), clock or self.clock, random)
        self._random = random
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._common = random.randbytes(_NUM_COMMON * HASH_BYTES)
        self._own = [random.randbytes(num_own * HASH_BYTES) for _ in range(num_workers // 2)]
        self._seqs = [0] * num_workers
        for number in range(num_workers):
            self._register(number)

    def prompt(self, num_tokens: int) -> bytes:
        """Return the hashes of a prompt of which half is cached on one worker of each role."""
        num_blocks = num_tokens // _BLOCK_SIZE
        cached = self._random.choice(self._own)[: num_blocks // 2 * HASH_BYTES]
        new = self._random.randbytes(num_blocks * HASH_BYTES)
        return (self._common + cached + new)[: num_blocks * HASH_BYTES]

    def request(self, request_id: str, num_tokens: int) -> router_pb2.PickRequest:
        """Return a request with such a prompt."""
        return router_pb2.PickRequest(
            request_id=request_id,
            model_fp=_MODEL,
            block_hashes=self.prompt(num_tokens),
            num_prompt_tokens=num_tokens,
            expected_output_tokens=300,
            num_choices=1,
        )

    def report(self, number: int, *accepted: str) -> None:
        """Send a worker's load, with figures that differ from report to report."""
        random = self._random
        is_decode = number % 2
        load = worker_pb2.Load(
            num_running=random.randrange(16, 24) if is_decode else 1,
            num_blocks_total=_NUM_BLOCKS,
            num_blocks_free=_NUM_BLOCKS - random.randrange(1000),
            num_queued_prefill_tokens=0 if is_decode else random.randrange(8000),
            prefill_tokens_per_s=random.uniform(7 / 8, 9 / 8) * self._prefill_tokens_per_s,
            decode_step_s=random.uniform(0.03, 0.05) if is_decode else 0.0,
            handoff_bytes_per_s=random.uniform(9e9, 11e9) if is_decode else 0.0,
            accepted_request_ids=accepted,
        )
        self._send(number, load=load)

    def report_all(self) -> None:
        for number in range(len(self._seqs)):
            self.report(number)

    def _register(self, number: int) -> None:
        is_decode = number % 2
        register = worker_pb2.Register(
            protocol=PROTOCOL_VERSION,
            worker_id=str(number),
            boot_epoch=1,
            role=router_pb2.WORKER_ROLE_DECODE if is_decode else router_pb2.WORKER_ROLE_PREFILL,
            model_fp=_MODEL,
            model_name=_MODEL,
            kv_spec_digest="one",
            block_size=_BLOCK_SIZE,
            block_bytes=_BLOCK_SIZE * 131_072,
            num_blocks=_NUM_BLOCKS,
            max_model_len=1 << 20,
            max_num_seqs=64,
        )
        self._send(number, register=register)
        hashes = self._common + self._own[number // 2 % len(self._own)]
        self._send(number, snapshot=worker_pb2.KvSnapshot(hashes=hashes))
        self.report(number)

    def _send(self, number: int, **report: Any) -> None:
        self._seqs[number] += 1
        self.core.apply_report(f"{number}:1", worker_pb2.Report(seq=self._seqs[number], **report))


def pick_record(num_workers: int, num_picks: int, seed: int) -> dict[str, Any]:
    """Measure the picks, reports and views of a fleet of this size."""
    fleet = PaperFleet(num_workers, _NUM_OWN if num_workers < 1000 else _NUM_OWN // 2, Random(seed))
    # What lives as long as the process is not looked at for garbage again and again.
    gc.collect()
    gc.freeze()
    record: dict[str, Any] = {
        "part": "picks",
        "num_workers": num_workers,
        "num_picks": num_picks,
        "seed": seed,
    }
    for num_tokens in PROMPT_TOKENS:
        times = sorted(_pick_times(fleet, num_tokens, num_picks))
        record[f"pick_{num_tokens}_p50_s"] = times[len(times) // 2]
        record[f"pick_{num_tokens}_p99_s"] = times[int(len(times) * 0.99)]
    record["report_s"] = _median_s(lambda: fleet.report(1), num_picks)
    record["view_s"] = _view_s(fleet)
    record["views_share"] = _views_share(fleet)
    gc.unfreeze()
    return record


def _pick_times(fleet: PaperFleet, num_tokens: int, num_picks: int) -> Iterator[float]:
    for number in range(num_picks):
        fleet.clock.at_s += 0.01
        if number % 20 == 0:
            fleet.report_all()
        request = fleet.request(f"request-{number}", num_tokens)
        before = time.thread_time_ns()
        response = _run(fleet.core.pick(request))
        yield (time.thread_time_ns() - before) / 1e9
        for chosen in (response.prefill, response.decode):
            fleet.report(int(chosen.worker_id), request.request_id)


def _run(call: Coroutine[Any, Any, router_pb2.PickResponse]) -> router_pb2.PickResponse:
    """Run a call that never waits."""
    try:
        call.send(None)
    except StopIteration as ended:
        response: router_pb2.PickResponse = ended.value
        return response
    raise AssertionError("a pick of an idle fleet waited")


def _median_s(work: Callable[[], object], num_times: int) -> float:
    times = []
    for _ in range(num_times):
        before = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - before)
    return sorted(times)[num_times // 2] / 1e9


def _view_s(fleet: PaperFleet) -> float:
    """The CPU time of one whole view and its bytes."""

    def view() -> None:
        fleet.clock.at_s += 0.1
        fleet.core.admission().SerializeToString()

    return _median_s(view, 20)


def _views_share(fleet: PaperFleet, num_gateways: int = 50) -> float:
    """The share of a core that so many gateways' views take: ten times a second what has changed,
    while all workers report as often."""
    spent_ns, num_seconds = 0, 4
    fleet.core.admission_changes()
    for _ in range(10 * num_seconds):
        fleet.clock.at_s += 0.1
        fleet.report_all()
        before = time.thread_time_ns()
        changes = fleet.core.admission_changes()
        for _ in range(num_gateways):
            changes.SerializeToString()
        spent_ns += time.thread_time_ns() - before
    return spent_ns / 1e9 / num_seconds


def index_record(num_workers: int, num_own: int, seed: int) -> dict[str, Any]:
    """Measure the index's memory: 32 blocks that all workers hold, `num_own` that one holds."""
    random = Random(seed)
    tracemalloc.start()
    index = PrefixIndex(_NUM_BLOCKS)
    common = random.randbytes(_NUM_COMMON * HASH_BYTES)
    for number in range(num_workers):
        index.stored(str(number), hashes_of(common + random.randbytes(num_own * HASH_BYTES)))
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "part": "index",
        "num_workers": num_workers,
        "num_entries": index.num_hashes,
        "bytes_per_entry": num_bytes / index.num_hashes,
    }
