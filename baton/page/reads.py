"""What any page answers: its files, the fleet each second, requests and their spans, tenants."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from baton.page.answers import Endpoints, Refused, json, number, raw_body
from baton.page.fleet_source import FleetSource
from baton.page.fleet_watch import FleetWatch
from baton.page.found_request import found_request
from baton.page.latest_costs import LatestCosts
from baton.page.past import WINDOWS_S
from baton.page.quota_client import QuotaClient
from baton.page.request_rows import Filter, listed
from baton.page.span_store import SpanStore

FILES = Path(__file__).parent / "files"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """What the page shows, and whether it may do anything: only that of a local stack may."""

    is_local: bool
    views: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the page reads."""

    fleet: FleetSource
    # The file of the span store.
    spans: Path
    # The folder of quota's usage records; None where they are out of reach.
    usage: Path | None = None


def files_in(folder: Path) -> dict[str, Path]:
    """The files of a page by the paths that they are served under."""
    return {f"/{path.name}": path for path in folder.iterdir() if path.suffix in _TYPES}


def file_answer(path: Path) -> Response:
    return FileResponse(path, media_type=_TYPES[path.suffix])


class Reads:
    """The answers that change nothing."""

    def __init__(self, sources: Sources, watch: FleetWatch, quota: QuotaClient, mode: Mode) -> None:
        self._sources = sources
        self._watch = watch
        self._quota = quota
        self._mode = mode
        self._costs = None if sources.usage is None else LatestCosts(sources.usage)
        self._files = files_in(FILES)

    def endpoints(self) -> Endpoints:
        """What is asked below /api/."""
        return {
            "mode": {"GET": self._told_mode},
            "fleet": {"GET": self._fleet},
            "requests": {"GET": self._requests},
            "requests/{request_id}": {"GET": self._request},
            "admin/{path:path}": {"GET": self.admin},
        }

    def file_routes(self) -> list[Route]:
        return [Route(path, self._file) for path in ("/", *self._files)]

    async def admin(self, request: Request) -> Response:
        """What quota's admin API answers to the same."""
        path = request.path_params["path"]
        if query := request.scope["query_string"].decode("latin-1"):
            path = f"{path}?{query}"
        answer = await self._quota.ask(request.method, path, await raw_body(request))
        return Response(answer.content, answer.status_code, media_type="application/json")

    async def _file(self, request: Request) -> Response:
        return file_answer(self._files.get(request.scope["path"], FILES / "index.html"))

    async def _told_mode(self, request: Request) -> Response:
        return json(asdict(self._mode))

    async def look(self, request: Request) -> dict[str, Any]:
        """The fleet over the window that is asked for. Raises Refused."""
        window_s = int(number(request, "window") or WINDOWS_S[0])
        if window_s not in WINDOWS_S:
            raise Refused(400, f"window={window_s}: must be one of {WINDOWS_S}")
        return await self._watch.view(window_s)

    async def _fleet(self, request: Request) -> Response:
        return json(await self.look(request))

    async def _requests(self, request: Request) -> Response:
        asked = request.query_params
        names = ("text", "tenant", "model", "outcome", "worker")
        wanted = Filter(
            **{name: asked.get(name, "") for name in names},
            slower_s=number(request, "slower"),
            since_s=number(request, "since"),
        )
        return json(await asyncio.to_thread(self._listed, wanted))

    def _listed(self, wanted: Filter) -> dict[str, Any]:
        with SpanStore(self._sources.spans) as store:
            found = listed(store, wanted)
        costs = self._costs.look() if self._costs else {}
        for row in found["rows"]:
            row["cost"] = costs.get((row["tenant"], row["request_id"]))
        return found

    async def _request(self, request: Request) -> Response:
        request_id = request.path_params["request_id"]
        spans, usage = self._sources.spans, self._sources.usage
        found = await asyncio.to_thread(found_request, self._watch, spans, usage, request_id)
        return json(found)
