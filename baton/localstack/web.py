"""The local web page: the fleet, the open requests, and the time that each span of one took.

For use without Grafana and Jaeger. It reads the same sources as `baton top` and `baton trace` and
listens on this machine only; names in Host other than this machine's are refused, so that no other
page can read it through a browser.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from baton.localstack.fleet_view import Reading, fleet_view
from baton.localstack.home import Home
from baton.localstack.scraper import Scraper
from baton.localstack.span_store import SpanStore, StoredSpan
from baton.runtime import environment, logs
from baton.runtime.process import Process, run

_PAGE = Path(__file__).parent / "page"
_FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}
# Requests that follow each other faster than this share one reading of the services.
_FRESH_FOR_S = 0.8
_MAX_RECENT = 100
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

_log = logs.get("web")


@dataclass(frozen=True)
class Settings:
    """BATON_WEB_LISTEN ("host:port"), BATON_WEB_HOME (the folder of the stack)."""

    listen: str
    home: Path


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process root has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class FleetWatch:
    """The last two readings of the services, for any number of browsers."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._scraper = Scraper()
        self._before = self._after = Reading(-math.inf, {})
        self._looking = asyncio.Lock()

    async def view(self) -> dict[str, Any]:
        """The view of the fleet and its open requests; `stack` is None when no stack runs."""
        async with self._looking:
            state = await asyncio.to_thread(self._home.read_state)
            if state is None:
                return {"stack": None}
            if time.monotonic() - self._after.at_s > _FRESH_FOR_S:
                self._before = self._after
                self._after = await asyncio.to_thread(self._scraper.read, state)
            requests = await asyncio.to_thread(self._scraper.open_requests, state)
        view = fleet_view(self._before, self._after)
        return {"stack": state.base_url, "fleet": asdict(view), "requests": requests}

    def close(self) -> None:
        self._scraper.close()


class Pages:
    """The answers to a browser."""

    def __init__(self, home: Home) -> None:
        self._watch = FleetWatch(home)
        self._spans = home.spans

    def app(self) -> Starlette:
        routes = [Route(path, self._file) for path in _FILES]
        routes += [
            Route("/api/fleet", self._fleet),
            Route("/api/requests", self._recent),
            Route("/api/requests/{request_id}", self._waterfall),
        ]
        hosts = ["127.0.0.1", "localhost"]
        return Starlette(
            routes=routes,
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        )

    def close(self) -> None:
        self._watch.close()

    async def _file(self, request: Request) -> Response:
        return FileResponse(_PAGE / _FILES[request.url.path], headers=_HEADERS)

    async def _fleet(self, request: Request) -> Response:
        return _json(await self._watch.view())

    async def _recent(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self._read_recent))

    async def _waterfall(self, request: Request) -> Response:
        request_id = request.path_params["request_id"]
        return _json(await asyncio.to_thread(self._read_spans, request_id))

    def _read_recent(self) -> list[dict[str, Any]]:
        with SpanStore(self._spans) as store:
            return [_summary(span) for span in store.last_requests(_MAX_RECENT)]

    def _read_spans(self, request_id: str) -> list[dict[str, Any]]:
        with SpanStore(self._spans) as store:
            return [asdict(span) for span in store.of_request(request_id)]


def _summary(span: StoredSpan) -> dict[str, Any]:
    """A row of the list, from the span of the whole request."""
    attributes = span.attributes
    return {
        "request_id": span.request_id,
        "started_unix_s": span.start_ns / 1e9,
        "seconds": (span.end_ns - span.start_ns) / 1e9,
        "failed": span.failed,
        "model": attributes.get("gen_ai.request.model", ""),
        "outcome": attributes.get("baton.outcome", ""),
        "num_prompt_tokens": attributes.get("gen_ai.usage.input_tokens", ""),
        "num_output_tokens": attributes.get("gen_ai.usage.output_tokens", ""),
        "num_attempts": attributes.get("baton.num_attempts", ""),
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=_HEADERS)


async def main(process: Process) -> None:
    settings = environment.load(Settings, "BATON_WEB_")
    host, _, port = settings.listen.rpartition(":")
    pages = Pages(Home(settings.home))
    config = uvicorn.Config(
        pages.app(), host=host, port=int(port), log_config=None, access_log=False, lifespan="off"
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve())
        _log.info("serving", listen=settings.listen)
        await process.stopping.wait()
        server.should_exit = server.force_exit = True
        await serving
    pages.close()


if __name__ == "__main__":
    run("web", main)
