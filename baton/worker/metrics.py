"""The worker's metrics, from the core's step events and the fronts' own counts."""

from collections.abc import Callable
from functools import partial

from baton.engine.protocol.engine_time import EngineTimes
from baton.engine.protocol.messages import EngineInfo, StepEvents
from baton.system.clock import Clock
from baton.wire.v1 import router_pb2
from baton.worker import instruments

_TOTALS = (
    (instruments.ENGINE_UPTIME, "uptime_us"),
    (instruments.ENGINE_BUSY, "busy_us"),
    (instruments.ENGINE_UNBILLED, "unbilled_us"),
)


class WorkerMetrics:
    """One engine's series, an attribute for each; `observe` takes every step."""

    def __init__(self, info: EngineInfo, totals: Callable[[], router_pb2.EngineTotals]) -> None:
        labels = (info.model_name, "0")
        self._num_blocks = info.num_blocks
        self._running = instruments.NUM_REQUESTS_RUNNING.labels(*labels)
        self._waiting = instruments.NUM_REQUESTS_WAITING.labels(*labels)
        self._parked = instruments.NUM_REQUESTS_PARKED.labels(*labels)
        self._usage = instruments.KV_CACHE_USAGE.labels(*labels)
        self._used = instruments.KV_BLOCKS_USED.labels(*labels)
        self._promised = instruments.KV_BLOCKS_PROMISED.labels(*labels)
        self._prompt_tokens = instruments.PROMPT_TOKENS.labels(*labels)
        self._generation_tokens = instruments.GENERATION_TOKENS.labels(*labels)
        self._cache_queries = instruments.PREFIX_CACHE_QUERIES.labels(*labels)
        self._cache_hits = instruments.PREFIX_CACHE_HITS.labels(*labels)
        self._preemptions = instruments.NUM_PREEMPTIONS.labels(*labels)
        self._draft_tokens = instruments.DRAFT_TOKENS.labels(*labels)
        self._accepted_tokens = instruments.ACCEPTED_TOKENS.labels(*labels)
        self._step_tokens = instruments.ITERATION_TOKENS.labels(*labels)
        self._step_seqs = instruments.STEP_BATCH_SIZE.labels(*labels)
        for gauge, name in _TOTALS:
            gauge.labels(*labels).set_function(partial(_seconds, totals, name))
        instruments.KV_BLOCKS.labels(*labels).set(info.num_blocks)
        instruments.CACHE_CONFIG_INFO.labels(
            *labels, str(info.kv_spec.block_size), str(info.num_blocks)
        ).set(1)
        self._set_used(0)

    def observe(self, events: StepEvents) -> None:
        """Take in one turn of the core."""
        load = events.load
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._parked.set(load.num_parked)
        self._promised.set(load.num_blocks_promised)
        self._set_used(self._num_blocks - load.num_blocks_free)
        if events.num_step_seqs:
            self._step_tokens.observe(events.num_step_tokens)
            self._step_seqs.observe(events.num_step_seqs)
        if events.token_ids:
            self._generation_tokens.inc(len(events.token_ids))
        if events.num_preemptions:
            self._preemptions.inc(events.num_preemptions)
        if events.num_draft_tokens:
            self._draft_tokens.inc(events.num_draft_tokens)
            self._accepted_tokens.inc(events.num_accepted_tokens)

    def took_prompt(self, num_tokens: int, num_cached_tokens: int) -> None:
        """A sequence entered the engine with this many prompt tokens, some of them cached."""
        self._prompt_tokens.inc(num_tokens)
        self._cache_queries.inc(num_tokens)
        self._cache_hits.inc(num_cached_tokens)

    def _set_used(self, num_used: int) -> None:
        self._used.set(num_used)
        self._usage.set(num_used / self._num_blocks)


def totals_of(
    times: EngineTimes, boot_epoch: int, clock: Clock
) -> Callable[[], router_pb2.EngineTotals]:
    """A function that tells the worker's uptime, from now on, and what it did with it."""
    started_s = clock.now()

    def totals() -> router_pb2.EngineTotals:
        return router_pb2.EngineTotals(
            boot_epoch=boot_epoch,
            uptime_us=int((clock.now() - started_s) * 1e6),
            busy_us=times.busy_us,
            unbilled_us=times.unbilled_us,
        )

    return totals


def _seconds(totals: Callable[[], router_pb2.EngineTotals], name: str) -> float:
    microseconds: int = getattr(totals(), name)
    return microseconds / 1e6
