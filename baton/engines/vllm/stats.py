"""Collects what vLLM counts of itself, for the worker's metrics page."""

from collections.abc import Iterable
from typing import Any

from baton.engine.protocol.vllm_stats import VllmStats
from baton.engines.vllm.sequences import VllmSequence


class StatsBook:
    """The numbers of one engine since its last report."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._stats = VllmStats()

    def take_output(self, seq: VllmSequence, output: Any) -> None:
        """A step brought this for a sequence."""
        stats = self._stats
        if (prompt := output.prefill_stats) is not None:
            stats.computed_prompts.append(prompt.num_computed_tokens)
            stats.num_computed_tokens += prompt.num_computed_tokens
            stats.num_cached_tokens += prompt.num_local_cached_tokens
            stats.num_handed_over_tokens += prompt.num_external_cached_tokens
        if output.finish_reason is not None:
            stats.preemptions.append(seq.request.num_preemptions)

    def take(self, seqs: Iterable[VllmSequence]) -> VllmStats:
        """The stats for a report; what comes next is counted anew."""
        stats, self._stats = self._stats, VllmStats()
        theirs = self._scheduler.take_stats()
        stats.num_waiting = theirs.num_waiting_reqs
        stats.num_deferred = theirs.num_skipped_waiting_reqs
        stats.num_kv_fetches = theirs.num_kv_fetch_reqs_by_stage
        if (handoffs := theirs.connector_prefix_cache_stats) is not None:
            stats.num_external_queries = handoffs.queries
            stats.num_external_hits = handoffs.hits
        running: set[str] = set()
        waiting: set[str] = set()
        for seq in seqs:
            if seq.add.adapter and not seq.is_over:
                is_running = seq.request.status.name == "RUNNING"
                (running if is_running else waiting).add(seq.add.adapter)
        stats.running_adapters, stats.waiting_adapters = sorted(running), sorted(waiting)
        return stats
