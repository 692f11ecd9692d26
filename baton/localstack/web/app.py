"""The local web page's answers: what any page reads, and what its buttons do.

For use without Grafana and Jaeger. It reads the same sources as `baton top` and `baton trace`, and
asks the stack's own API and quota's admin API. Whom it answers is decided in guard.py.
"""

import asyncio

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from baton.localstack.home import Home, StackState
from baton.localstack.web.gateway_client import (
    MAX_SECONDS,
    MAX_USERS,
    PASSED_HEADERS,
    Crowd,
    GatewayClient,
    pieces,
)
from baton.localstack.web.guard import LOCAL_HOSTS, Guard
from baton.localstack.web.services import kill_worker, log_tail
from baton.page.answers import Away, Endpoints, Refused, body, json, routes_of
from baton.page.fleet_watch import FleetWatch
from baton.page.quota_client import QuotaClient
from baton.page.reads import Mode, Reads, Sources

_MODE = Mode(is_local=True, views=("fleet", "playground", "requests", "tenants"))


class Pages:
    """The answers to a browser."""

    def __init__(self, home: Home, quota_api: str = "") -> None:
        self._home = home
        self._watch = FleetWatch(home, home.spans)
        self._gateway = GatewayClient(home)
        self._crowd = Crowd(self._gateway)
        self._quota = QuotaClient(quota_api, home.admin_token)
        sources = Sources(home, home.spans, home.usage)
        self._reads = Reads(sources, self._watch, self._quota, _MODE)

    def app(self) -> Starlette:
        """The ASGI application."""
        admin = self._reads.admin
        endpoints: Endpoints = {
            **self._reads.endpoints(),
            "fleet": {"GET": self._fleet},
            "logs/{service}": {"GET": self._log},
            "models": {"GET": self._models},
            "chat": {"POST": self._chat},
            "crowd": {"POST": self._send_crowd, "DELETE": self._stop_crowd},
            "workers/{name}/kill": {"POST": self._kill},
            "admin/{path:path}": dict.fromkeys(("GET", "POST", "PUT", "DELETE"), admin),
        }
        return Starlette(
            routes=[*self._reads.file_routes(), *routes_of(endpoints)],
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

    async def _fleet(self, request: Request) -> Response:
        look = await self._reads.look(request)
        return json({**look, "crowd": self._crowd.state()})

    async def _log(self, request: Request) -> Response:
        name = request.path_params["service"]
        lines = await asyncio.to_thread(log_tail, self._home, await self._state(), name)
        return json({"lines": lines})

    async def _models(self, request: Request) -> Response:
        env = await asyncio.to_thread(self._home.read_dev_env)
        models = await self._gateway.models()
        return json({"models": models, "base_url": env.get("BASE_URL", "")})

    async def _chat(self, request: Request) -> Response:
        answer = await self._gateway.ask(await body(request))
        told = {name: answer.headers[name] for name in PASSED_HEADERS if name in answer.headers}
        return StreamingResponse(pieces(answer), answer.status_code, headers=told)

    async def _send_crowd(self, request: Request) -> Response:
        asked = await body(request)
        if self._crowd.is_running:
            raise Refused(409, "users are there already")
        model, num_users = asked.get("model"), asked.get("num_users", MAX_USERS)
        if not isinstance(model, str) or not isinstance(num_users, int) or num_users < 1:
            raise Refused(400, "say model and num_users")
        self._crowd.send(num_users, model, MAX_SECONDS)
        return json(self._crowd.state())

    async def _stop_crowd(self, request: Request) -> Response:
        self._crowd.stop()
        return json(self._crowd.state())

    async def _kill(self, request: Request) -> Response:
        name = request.path_params["name"]
        pid = await asyncio.to_thread(kill_worker, await self._state(), name)
        return json({"killed": name, "pid": pid})

    async def _state(self) -> StackState:
        state = await asyncio.to_thread(self._home.read_state)
        if state is None:
            raise Away("no stack runs")
        return state
