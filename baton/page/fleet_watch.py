"""Looks at the services again and again and keeps what it saw, for any number of browsers.

It looks every second while somebody watches, and now and then otherwise, so that a page which is
opened later has a past to show.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from baton.page import picture
from baton.page.fleet_source import Fleet, FleetSource, Service
from baton.page.fleet_view import Reading, fleet_view
from baton.page.past import Past
from baton.page.scraper import Scraper
from baton.page.span_store import SpanStore

# A browser that shows the page asks every second.
_WATCHED_FOR_S = 10.0
# Open requests are asked no more often than this.
_SHARED_S = 0.5
_MAX_HANDOFFS = 6000
# Of every process, by the client library of Prometheus.
_STARTED = "process_start_time_seconds"
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
        _STARTED,
    }
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the services are asked, in seconds: while somebody looks, and otherwise."""

    watched_s: float = 1.0
    unwatched_s: float = 5.0


class FleetWatch:
    """The services of one fleet, and what can be said of their last minutes."""

    def __init__(self, source: FleetSource, spans: Path, pace: Pace | None = None) -> None:
        self._source = source
        self._spans = spans
        self._pace = pace or Pace()
        self._scraper = Scraper()
        self._requests = OpenRequests(self._scraper)
        self._past = Past()
        self._down_since: dict[str, float] = {}
        self._asked_s = -math.inf
        self._wanted = asyncio.Event()
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            fleet = await asyncio.to_thread(self._source.fleet)
            if fleet is not None:
                await self._look(fleet)
            is_watched = time.monotonic() - self._asked_s < _WATCHED_FOR_S
            self._wanted.clear()
            pause_s = self._pace.watched_s if is_watched else self._pace.unwatched_s
            try:
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def view(self, window_s: float) -> dict[str, Any]:
        """The fleet and its open requests over the last seconds; `stack` is None when there is no
        fleet."""
        fleet = await asyncio.to_thread(self._source.fleet)
        if fleet is None:
            return {"stack": None}
        if time.monotonic() - self._asked_s > self._pace.watched_s * 3:
            await self._look(fleet)
            self._wanted.set()
        self._asked_s = time.monotonic()
        requests = await self._requests.rows(fleet)
        pairs = await asyncio.to_thread(self._pairs, fleet, window_s)
        before, after = self._past.between(window_s)
        pictures = picture.worker_pictures(before, after)
        return {
            "stack": fleet.title,
            "is_ready": fleet.is_ready,
            "is_stopping": fleet.is_stopping,
            "at_unix_s": time.time(),
            "window_s": window_s,
            "fleet": asdict(fleet_view(before, after)),
            "pictures": {name: asdict(each) for name, each in pictures.items()},
            "pairs": [asdict(pair) for pair in pairs],
            "lives": self._lives(fleet.services, after),
            "points": self._past.points(window_s),
            "requests": requests,
        }

    def explanation(self, request_id: str) -> dict[str, Any] | None:
        """The explanation of a request's picks, if a gateway has it. Blocks."""
        fleet = self._source.fleet()
        return self._scraper.explanation(fleet.services, request_id) if fleet else None

    def open_request(self, request_id: str) -> dict[str, Any] | None:
        """The row of an open request. Blocks."""
        fleet = self._source.fleet()
        rows = self._scraper.open_requests(fleet.services) if fleet else []
        return next((row for row in rows if row["request_id"] == request_id), None)

    def close(self) -> None:
        self._scraper.close()

    async def _look(self, fleet: Fleet) -> None:
        async with self._looking:
            reading = await asyncio.to_thread(self._scraper.read, fleet.services, NAMES)
        self._past.add(reading)
        silent = [name for name, page in reading.pages.items() if page is None]
        self._down_since = {name: self._down_since.get(name, time.time()) for name in silent}

    def _pairs(self, fleet: Fleet, window_s: float) -> list[picture.PairPicture]:
        names = picture.SPANS
        since_ns = int((time.time() - window_s) * 1e9)
        with SpanStore(self._spans) as store:
            spans = store.named(names, since_ns, _MAX_HANDOFFS)
        return picture.pair_pictures(spans, picture.prefill_names(fleet.services), window_s)

    def _lives(self, services: Sequence[Service], last: Reading) -> dict[str, dict[str, Any]]:
        return {
            each.name: {
                "role": each.role,
                "started_unix_s": each.started_unix_s or _started_unix_s(last, each.name),
                "num_restarts": each.num_restarts,
                "is_running": each.is_running,
                "down_since_unix_s": self._down_since.get(each.name),
            }
            for each in services
        }


class OpenRequests:
    """The gateways' open requests, asked once for all browsers that look at the same time."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper
        self._asking: asyncio.Task[list[dict[str, Any]]] | None = None
        self._asked_s = -math.inf

    async def rows(self, fleet: Fleet) -> list[dict[str, Any]]:
        """All rows, oldest first; shared while they are asked and for half a second."""
        is_old = time.monotonic() - self._asked_s > _SHARED_S
        if self._asking is None or (is_old and self._asking.done()):
            self._asked_s = time.monotonic()
            ask = asyncio.to_thread(self._scraper.open_requests, fleet.services)
            self._asking = asyncio.create_task(ask)
        # A browser that leaves takes the answer from nobody.
        return await asyncio.shield(self._asking)


def _started_unix_s(reading: Reading, name: str) -> float:
    """When a service's oldest process began; 0 when it does not say."""
    page = reading.pages.get(name)
    return min(page.by(_STARTED, "process").values(), default=0.0) if page else 0.0
