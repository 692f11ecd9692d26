"""The worker's metrics, from the core's step events and the fronts' own counts."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from baton.engine.protocol.engine_time import EngineTimes
from baton.engine.protocol.messages import EngineInfo, StepEvents
from baton.engine.protocol.vllm_stats import VllmStats
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
        self._num_blocks, self._num_rows = info.num_blocks, info.num_rows
        self._running = instruments.NUM_REQUESTS_RUNNING.labels(*labels)
        self._waiting = instruments.NUM_REQUESTS_WAITING.labels(*labels)
        self._parked = instruments.NUM_REQUESTS_PARKED.labels(*labels)
        self._usage = instruments.KV_CACHE_USAGE.labels(*labels)
        self._used = instruments.KV_BLOCKS_USED.labels(*labels)
        self._promised = instruments.KV_BLOCKS_PROMISED.labels(*labels)
        self._cached = instruments.KV_BLOCKS_CACHED.labels(*labels)
        self._rows_used = instruments.STAGING_ROWS_USED.labels(*labels)
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
        instruments.STAGING_ROWS.labels(*labels).set(info.num_rows)
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
        self._cached.set(events.num_cached_hashes)
        self._rows_used.set(self._num_rows - load.num_rows_free)
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


class VllmMetrics:
    """What vLLM counts of itself, under its own names; `observe` takes every step. `adapters` tells
    the names of adapters, by fingerprint."""

    def __init__(
        self, info: EngineInfo, adapters: Callable[[], Mapping[str, str]], clock: Clock
    ) -> None:
        self._model = (info.model_name, "0")
        self._num_adapters = info.num_adapter_slots
        self._adapters = adapters
        self._clock = clock
        self._lora_labels: tuple[str, ...] | None = None
        self._computed_tokens = instruments.PREFILL_COMPUTED_TOKENS.labels(*self._model)
        self._preemptions = instruments.REQUEST_PREEMPTIONS.labels(*self._model)
        # What a step tells in which nothing has happened since the last one.
        self._quiet: VllmStats | None = None
        self._take(VllmStats())

    def observe(self, events: StepEvents) -> None:
        """Take in one turn of the core."""
        if events.vllm is not None and events.vllm != self._quiet:
            self._take(events.vllm)

    def _take(self, stats: VllmStats) -> None:
        model = self._model
        waiting = {"capacity": stats.num_waiting, "deferred": stats.num_deferred}
        for reason, number in waiting.items():
            instruments.WAITING_BY_REASON.labels(*model, reason).set(number)
        for stage, number in stats.num_kv_fetches.items():
            instruments.KV_FETCHES_BY_STAGE.labels(*model, stage).set(number)
        instruments.EXTERNAL_CACHE_QUERIES.labels(*model).inc(stats.num_external_queries)
        instruments.EXTERNAL_CACHE_HITS.labels(*model).inc(stats.num_external_hits)
        sources = {
            "local_compute": stats.num_computed_tokens,
            "local_cache_hit": stats.num_cached_tokens,
            "external_kv_transfer": stats.num_handed_over_tokens,
        }
        for source, number in sources.items():
            instruments.PROMPT_TOKENS_BY_SOURCE.labels(*model, source).inc(number)
        num_cached = stats.num_cached_tokens + stats.num_handed_over_tokens
        instruments.PROMPT_TOKENS_CACHED.labels(*model).inc(num_cached)
        for num_tokens in stats.computed_prompts:
            self._computed_tokens.observe(num_tokens)
        for number in stats.preemptions:
            self._preemptions.observe(number)
        if self._num_adapters:
            self._tell_adapters(stats)
        self._quiet = VllmStats(
            stats.num_waiting,
            stats.num_deferred,
            stats.num_kv_fetches,
            stats.running_adapters,
            stats.waiting_adapters,
        )

    def _tell_adapters(self, stats: VllmStats) -> None:
        """One series at a time: each set of adapters would leave another one behind."""
        names = self._adapters()
        labels = (
            str(self._num_adapters),
            _joined(names, stats.waiting_adapters),
            _joined(names, stats.running_adapters),
        )
        if self._lora_labels not in (None, labels):
            instruments.LORA_REQUESTS.remove(*self._lora_labels)
        self._lora_labels = labels
        instruments.LORA_REQUESTS.labels(*labels).set(self._clock.unix())


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


def _joined(names: Mapping[str, str], fingerprints: Iterable[str]) -> str:
    return ",".join(sorted(names[each] for each in fingerprints if each in names))
