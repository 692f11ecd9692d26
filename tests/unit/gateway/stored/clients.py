"""A client of one gateway with a store, on virtual time."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from redis.exceptions import ConnectionError as RedisConnectionError

from baton.system.clock import Clock
from baton.testing.redis_server import RedisDouble
from services.gateway.app import App
from services.gateway.redis_commands import RedisCommands
from services.gateway.stored.store import Store, StoreLimits
from tests.unit.gateway.fakes import KEY, Fleet, simulate

T = TypeVar("T")


class Redis(RedisDouble):
    """A server that may be away, and says how much memory it uses."""

    is_away = False
    # It does what it is told, and its answers are lost.
    is_mute = False
    num_lost = 0
    # Of an answer.
    delay_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[str, Any] = {}
        self.num_read: Counter[str] = Counter()
        # In bytes.
        self.largest_argument = 0

    async def info(self, section: str | None = None, *args: str, **kwargs: Any) -> dict[str, Any]:
        return self.memory

    async def execute_command(self, *arguments: Any, **options: Any) -> Any:
        if self.is_away:
            raise RedisConnectionError("away")
        self.num_read[arguments[0]] += 1
        sizes = [len(each) for each in arguments if isinstance(each, str | bytes)]
        self.largest_argument = max(self.largest_argument, *sizes)
        answer = await super().execute_command(*arguments, **options)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.is_mute:
            self.num_lost += 1
            raise RedisConnectionError("lost")
        return answer


class Answered:
    """One HTTP answer as far as it has come. `gone`: set it, and the client leaves."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.gone = asyncio.Event()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        parts = self.body.decode().split("\n\n")
        return [json.loads(part.split("\ndata: ")[1]) for part in parts if "\ndata: " in part]

    @property
    def error(self) -> str:
        """The code and the field of a refusal."""
        error = self.json["error"]
        return f"{self.status} {error['code']} {error['param']}"


class Caller:
    """Sends requests to one gateway, each as a client of its own."""

    def __init__(self, fleet: Fleet, redis: Redis | None = None) -> None:
        self.fleet = fleet
        self.redis = redis or Redis()
        self.app = App(
            fleet.gateway, max_body_bytes=1_000_000, max_open_requests=100, deadline_s=600.0
        )

    async def create(self, input: Any = "hi", **fields: Any) -> Answered:
        body = {"model": "demo", "input": input, **fields}
        return await self.call("POST", "/v1/responses", body)

    async def get(self, path: str) -> Answered:
        return await self.call("GET", path)

    async def call(
        self, method: str, path: str, fields: Any = None, headers: dict[str, str] | None = None
    ) -> Answered:
        """Make a request, and wait for its whole answer."""
        answered = Answered()
        await self._serve(method, path, fields, answered, headers)
        return answered

    async def send(
        self, method: str, url: str, body: bytes, headers: dict[str, str] | None = None
    ) -> Answered:
        """Send these bytes to a quoted path, and wait for the whole answer."""
        answered = Answered()
        await self._exchange(method, url, body, answered, headers)
        return answered

    def begin(
        self, method: str, path: str, fields: Any = None, headers: dict[str, str] | None = None
    ) -> Answered:
        """Make a request, and wait for nothing."""
        answered = Answered()
        self.fleet.tasks.create_task(self._serve(method, path, fields, answered, headers))
        return answered

    async def _serve(
        self,
        method: str,
        path: str,
        fields: Any,
        answered: Answered,
        headers: dict[str, str] | None = None,
    ) -> None:
        body = fields if isinstance(fields, bytes) else msgspec.json.encode(fields)
        body = b"" if fields is None else body
        await self._exchange(method, path, body, answered, headers)

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        answered: Answered,
        headers: dict[str, str] | None = None,
    ) -> None:
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await answered.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answered.body += message.get("body", b"")
                if not message.get("more_body"):
                    # To an application a client leaves at the end of each of its requests.
                    answered.gone.set()

        path, _, query = path.partition("?")
        sent = {"authorization": f"Bearer {KEY}", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        await self.app(scope, receive, send)


def with_store(scenario: Callable[[Caller], Awaitable[T]], limits: StoreLimits | None = None) -> T:
    """Run `scenario` against a gateway with a store of its own."""

    redis = Redis()

    def store_of(clock: Clock) -> Store:
        return Store(RedisCommands(redis), limits or StoreLimits(), clock)

    async def run(fleet: Fleet) -> T:
        return await scenario(Caller(fleet, redis))

    return simulate(run, store_of=store_of)
