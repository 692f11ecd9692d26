"""The local web page's answers: its files, what it reads each second, and what its buttons do.

For use without Grafana and Jaeger. It reads the same sources as `baton top` and `baton trace`, and
asks the stack's own API and quota's admin API. Whom it answers is decided in guard.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.localstack.home import Home, StackState
from baton.localstack.span_store import SpanStore
from baton.localstack.web.fleet_watch import WINDOWS_S, FleetWatch
from baton.localstack.web.found_request import found_request
from baton.localstack.web.gateway_client import (
    MAX_SECONDS,
    MAX_USERS,
    PASSED_HEADERS,
    Crowd,
    GatewayClient,
    NoStack,
    pieces,
)
from baton.localstack.web.guard import LOCAL_HOSTS, Guard
from baton.localstack.web.latest_costs import LatestCosts
from baton.localstack.web.quota_client import QuotaClient
from baton.localstack.web.request_rows import Filter, listed
from baton.localstack.web.services import NoSuchService, kill_worker, log_tail

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_FILES = {f"/{path.name}": path for path in _FOLDER.iterdir() if path.suffix in _TYPES}
MAX_BODY_BYTES = 2 * 2**20

Endpoint = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Pages:
    """The answers to a browser."""

    def __init__(self, home: Home, quota_api: str = "") -> None:
        self._home = home
        self._watch = FleetWatch(home)
        self._gateway = GatewayClient(home)
        self._crowd = Crowd(self._gateway)
        self._quota = QuotaClient(home, quota_api)
        self._costs = LatestCosts(home.usage)

    def app(self) -> Starlette:
        """The ASGI application."""
        endpoints: dict[str, dict[str, Endpoint]] = {
            "fleet": {"GET": self._fleet},
            "requests": {"GET": self._requests},
            "requests/{request_id}": {"GET": self._request},
            "logs/{service}": {"GET": self._log},
            "models": {"GET": self._models},
            "chat": {"POST": self._chat},
            "crowd": {"POST": self._send_crowd, "DELETE": self._stop_crowd},
            "workers/{name}/kill": {"POST": self._kill},
            "admin/{path:path}": dict.fromkeys(("GET", "POST", "PUT", "DELETE"), self._admin),
        }
        routes = [Route(path, self._file) for path in ("/", *_FILES)]
        routes += [
            Route(f"/api/{path}", _answered(endpoint), methods=[method])
            for path, methods in endpoints.items()
            for method, endpoint in methods.items()
        ]
        return Starlette(
            routes=routes,
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS),
                Middleware(Guard),
            ],
        )

    async def run(self) -> None:
        """Watch the fleet until cancelled."""
        await self._watch.run()

    async def close(self) -> None:
        self._crowd.stop()
        self._watch.close()
        await self._gateway.close()
        await self._quota.close()

    async def _file(self, request: Request) -> Response:
        path = _FILES.get(request.url.path, _FOLDER / "index.html")
        return FileResponse(path, media_type=_TYPES[path.suffix])

    async def _fleet(self, request: Request) -> Response:
        window_s = int(_number(request, "window") or WINDOWS_S[0])
        if window_s not in WINDOWS_S:
            raise _Refused(400, f"window={window_s}: must be one of {WINDOWS_S}")
        view = await self._watch.view(window_s)
        return _json({**view, "crowd": self._crowd.state()})

    async def _requests(self, request: Request) -> Response:
        asked = request.query_params
        names = ("text", "tenant", "model", "outcome", "worker")
        wanted = Filter(
            **{name: asked.get(name, "") for name in names},
            slower_s=_number(request, "slower"),
            since_s=_number(request, "since"),
        )
        return _json(await asyncio.to_thread(self._listed, wanted))

    def _listed(self, wanted: Filter) -> dict[str, Any]:
        with SpanStore(self._home.spans) as store:
            found = listed(store, wanted)
        costs = self._costs.look()
        for row in found["rows"]:
            row["cost"] = costs.get((row["tenant"], row["request_id"]))
        return found

    async def _request(self, request: Request) -> Response:
        request_id = request.path_params["request_id"]
        return _json(await asyncio.to_thread(found_request, self._home, self._watch, request_id))

    async def _log(self, request: Request) -> Response:
        name = request.path_params["service"]
        lines = await asyncio.to_thread(log_tail, self._home, await self._state(), name)
        return _json({"lines": lines})

    async def _models(self, request: Request) -> Response:
        env = await asyncio.to_thread(self._home.read_dev_env)
        models = await self._gateway.models()
        return _json({"models": models, "base_url": env.get("BASE_URL", "")})

    async def _chat(self, request: Request) -> Response:
        answer = await self._gateway.ask(await _body(request))
        told = {name: answer.headers[name] for name in PASSED_HEADERS if name in answer.headers}
        return StreamingResponse(pieces(answer), answer.status_code, headers=told)

    async def _send_crowd(self, request: Request) -> Response:
        body = await _body(request)
        if self._crowd.is_running:
            raise _Refused(409, "users are there already")
        model, num_users = body.get("model"), body.get("num_users", MAX_USERS)
        if not isinstance(model, str) or not isinstance(num_users, int) or num_users < 1:
            raise _Refused(400, "say model and num_users")
        self._crowd.send(num_users, model, MAX_SECONDS)
        return _json(self._crowd.state())

    async def _stop_crowd(self, request: Request) -> Response:
        self._crowd.stop()
        return _json(self._crowd.state())

    async def _kill(self, request: Request) -> Response:
        name = request.path_params["name"]
        pid = await asyncio.to_thread(kill_worker, await self._state(), name)
        return _json({"killed": name, "pid": pid})

    async def _admin(self, request: Request) -> Response:
        path, body = request.path_params["path"], await _raw_body(request)
        if request.url.query:
            path = f"{path}?{request.url.query}"
        answer = await self._quota.ask(request.method, path, body)
        return Response(answer.content, answer.status_code, media_type="application/json")

    async def _state(self) -> StackState:
        state = await asyncio.to_thread(self._home.read_state)
        if state is None:
            raise NoStack("no stack runs")
        return state


def _answered(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose failures are answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except _Refused as refused:
            return _error(refused.status, str(refused))
        except NoSuchService as unknown:
            return _error(404, str(unknown))
        except (NoStack, httpx.HTTPError) as away:
            return _error(503, str(away) or type(away).__name__)

    return answer


def _number(request: Request, name: str) -> float:
    """A number of the query; 0 when it is not there."""
    text = request.query_params.get(name, "")
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        raise _Refused(400, f"{name}={text[:40]!r}: must be a number") from None


async def _raw_body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise _Refused(413, f"larger than {MAX_BODY_BYTES} bytes")
    return data


async def _body(request: Request) -> dict[str, Any]:
    try:
        return msgspec.json.decode(await _raw_body(request), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Refused(400, str(error)) from None


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _error(status: int, message: str) -> Response:
    content = msgspec.json.encode({"error": {"message": message}})
    return Response(content, status, media_type="application/json")
