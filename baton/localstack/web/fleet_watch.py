"""Looks at the services again and again and keeps what it saw, for any number of browsers.

It looks every second while somebody watches, and now and then otherwise, so that a page which is
opened later has a past to show. All readings of the last minute are kept, of those before only one
in several seconds.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from baton.localstack.fleet_view import FleetView, Reading, fleet_view
from baton.localstack.home import Home, StackState
from baton.localstack.scraper import Scraper
from baton.localstack.span_store import SpanStore
from baton.localstack.web import picture, span_names

WINDOWS_S = (10, 60, 300)
_EVERY_S = 1.0
_UNWATCHED_EVERY_S = 5.0
# A browser that shows the page asks every second.
_WATCHED_FOR_S = 10.0
_CLOSE_S = 60.0
_SPARSE_EVERY_S = 5.0
# A point of a chart looks back so far: in one second there may be no first token.
_POINT_S = 5.0
_MAX_HANDOFFS = 6000
_LATENCIES = ("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket")
# What the page shows; the pages of the services say ten times as much.
NAMES = frozenset(
    {
        *_LATENCIES,
        "vllm:e2e_request_latency_seconds_count",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_preemptions_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:iteration_tokens_total_sum",
        "vllm:spec_decode_num_draft_tokens_total",
        "baton_num_requests_parked",
        "baton_kv_blocks",
        "baton_kv_blocks_used",
        "baton_kv_blocks_promised",
        "baton_kv_blocks_cached",
        "baton_step_batch_size_sum",
        "baton_step_batch_size_count",
        "baton_engine_busy_seconds",
        "baton_audit_violations_total",
        "baton_handoff_bad_blocks_total",
        "baton_router_queue_requests",
        "baton_router_queued_prefill_seconds",
        "baton_router_ejections_total",
        "baton_router_quarantined_requests_total",
        "baton_gateway_open_requests",
        "baton_gateway_failed_requests_total",
        "baton_gateway_moves_total",
        "baton_gateway_lost_streams_total",
    }
)


class FleetWatch:
    """The readings of the last minutes, and what can be said from them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._scraper = Scraper()
        self._readings: deque[Reading] = deque()
        self._points: deque[dict[str, float | None]] = deque()
        self._down_since: dict[str, float] = {}
        self._asked_s = -math.inf
        self._wanted = asyncio.Event()
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            state = await asyncio.to_thread(self._home.read_state)
            if state is not None:
                await self._look(state)
            is_watched = time.monotonic() - self._asked_s < _WATCHED_FOR_S
            self._wanted.clear()
            try:
                async with asyncio.timeout(_EVERY_S if is_watched else _UNWATCHED_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def view(self, window_s: float) -> dict[str, Any]:
        """The fleet and its open requests over the last seconds; `stack` is None when no stack
        runs."""
        state = await asyncio.to_thread(self._home.read_state)
        if state is None:
            return {"stack": None}
        if time.monotonic() - self._asked_s > _EVERY_S * 3:
            await self._look(state)
            self._wanted.set()
        self._asked_s = time.monotonic()
        requests = await asyncio.to_thread(self._scraper.open_requests, state)
        pairs = await asyncio.to_thread(self._pairs, state, window_s)
        before, after = self._between(window_s)
        pictures = picture.worker_pictures(before, after)
        since_unix_s = time.time() - window_s
        return {
            "stack": state.base_url,
            "is_ready": state.ready,
            "is_stopping": state.stopping,
            "at_unix_s": time.time(),
            "window_s": window_s,
            "fleet": asdict(fleet_view(before, after)),
            "pictures": {name: asdict(each) for name, each in pictures.items()},
            "pairs": [asdict(pair) for pair in pairs],
            "lives": self._lives(state.services),
            "points": [point for point in self._points if (point["at"] or 0) >= since_unix_s],
            "requests": requests,
        }

    def explanation(self, state: StackState, request_id: str) -> dict[str, Any] | None:
        """The explanation of a request's picks, if a gateway has it. Blocks."""
        return self._scraper.explanation(state, request_id)

    def open_request(self, state: StackState, request_id: str) -> dict[str, Any] | None:
        """The row of an open request. Blocks."""
        rows = self._scraper.open_requests(state)
        return next((row for row in rows if row["request_id"] == request_id), None)

    def close(self) -> None:
        self._scraper.close()

    async def _look(self, state: StackState) -> None:
        async with self._looking:
            reading = await asyncio.to_thread(self._scraper.read, state, NAMES)
        before = self._before(reading.at_s - _POINT_S, reading)
        self._readings.append(reading)
        self._forget(reading.at_s)
        self._points.append(_point(fleet_view(before, reading)))
        while (self._points[0]["at"] or 0) < time.time() - max(WINDOWS_S):
            self._points.popleft()
        for name, page in reading.pages.items():
            if page is not None:
                self._down_since.pop(name, None)
            else:
                self._down_since.setdefault(name, time.time())

    def _forget(self, now_s: float) -> None:
        """Drop what is too old, and thin out what is older than a minute."""
        kept: deque[Reading] = deque()
        for reading in self._readings:
            age_s = now_s - reading.at_s
            is_close = age_s <= _CLOSE_S
            if age_s > max(WINDOWS_S) + _SPARSE_EVERY_S:
                continue
            if is_close or not kept or reading.at_s - kept[-1].at_s >= _SPARSE_EVERY_S:
                kept.append(reading)
        self._readings = kept

    def _before(self, at_s: float, default: Reading) -> Reading:
        """The first reading from then on."""
        return next((each for each in self._readings if each.at_s >= at_s), default)

    def _between(self, window_s: float) -> tuple[Reading, Reading]:
        """The first and the last reading of the window; rates need two."""
        if not self._readings:
            nothing = Reading(time.monotonic(), {})
            return nothing, nothing
        after = self._readings[-1]
        before = self._before(after.at_s - window_s, after)
        if before is after and len(self._readings) > 1:
            before = self._readings[-2]
        return before, after

    def _pairs(self, state: StackState, window_s: float) -> list[picture.PairPicture]:
        names = (span_names.HANDOFF, span_names.PREFILL, span_names.DECODE)
        since_ns = int((time.time() - window_s) * 1e9)
        with SpanStore(self._home.spans) as store:
            spans = store.named(names, since_ns, _MAX_HANDOFFS)
        return picture.pair_pictures(spans, picture.prefill_names(state.services), window_s)

    def _lives(self, services: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "started_unix_s": row.get("started_unix_s", 0),
                "num_restarts": row.get("num_restarts", 0),
                "is_running": bool(row.get("pid")),
                "down_since_unix_s": self._down_since.get(name),
            }
            for name, row in services.items()
        }


def _point(view: FleetView) -> dict[str, float | None]:
    """What the charts draw of one moment."""
    decodes = [row for row in view.workers if row.role == "decode"]
    return {
        "at": time.time(),
        "open": sum(row.num_open for row in view.gateways),
        "queued": view.num_queued,
        "requests": sum(row.requests_per_s for row in view.gateways),
        "failed": sum(row.failed_per_s for row in view.gateways),
        "first_token": view.first_token.p50_s,
        "token_gap": view.token_gap.p50_s,
        "output": sum(row.output_tokens_per_s for row in decodes),
        "prompt": sum(row.prompt_tokens_per_s for row in view.workers),
    }
