"""Asks the stack's own API on behalf of the page: one chat, or for a while those of many users.

The developer's key is read here and never leaves this process but to the gateway.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec

from baton.localstack.home import Home
from baton.page.answers import Away

# What a browser may learn of an answer's headers.
PASSED_HEADERS = ("x-request-id", "server-timing", "x-trace-url", "content-type", "retry-after")
MAX_USERS = 20
MAX_SECONDS = 30.0
_LAST_ANSWERS_S = 15.0
# As long as the gateway's own limit; a stream shows life before that.
_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
_QUESTIONS = (
    "What is TTFT?",
    "Tell me a story",
    "Explain backpressure in simple terms.",
    "What is a KV cache?",
    "Why are prefill and decode split?",
)


class GatewayClient:
    """The API of the stack, with the developer's key."""

    def __init__(self, home: Home) -> None:
        self._home = home
        # Its certificates take 30 ms to read, and nothing here is TLS.
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, verify=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, body: dict[str, Any]) -> httpx.Response:
        """Ask for a streamed answer, which the caller closes. Raises Away, httpx.HTTPError."""
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return await self._send("POST", "/chat/completions", msgspec.json.encode(streamed))

    async def models(self) -> list[str]:
        """The names of the models that the key may use. Raises Away, httpx.HTTPError."""
        answer = await self._send("GET", "/models", b"")
        try:
            found = msgspec.json.decode(await answer.aread())
        finally:
            await answer.aclose()
        return [model["id"] for model in found.get("data", [])]

    async def _send(self, method: str, path: str, content: bytes) -> httpx.Response:
        env = await asyncio.to_thread(self._home.read_dev_env)
        if await asyncio.to_thread(self._home.read_state) is None or "BASE_URL" not in env:
            raise Away("no stack runs")
        headers = {
            "Authorization": f"Bearer {env.get('API_KEY', '')}",
            "Content-Type": "application/json",
        }
        url = f"{env['BASE_URL']}{path}"
        request = self._http.build_request(method, url, content=content, headers=headers)
        return await self._http.send(request, stream=True)


async def pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The answer's body as it comes; closes it at the end, or when the reader leaves."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


class Crowd:
    """Users who ask one question after the other, for a while; one crowd at a time."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._running: asyncio.Task[None] | None = None
        self._num_users = 0
        self._ends_unix_s = 0.0
        self._num_answered = self._num_failed = 0

    def state(self) -> dict[str, Any]:
        """The crowd as the page shows it."""
        return {
            "is_running": self.is_running,
            "num_users": self._num_users,
            "ends_unix_s": self._ends_unix_s,
            "num_answered": self._num_answered,
            "num_failed": self._num_failed,
        }

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def send(self, num_users: int, model: str, seconds: float) -> None:
        """Send users for so many seconds. Only while none are there."""
        assert not self.is_running
        self._num_users = min(num_users, MAX_USERS)
        seconds = min(seconds, MAX_SECONDS)
        self._ends_unix_s = time.time() + seconds
        self._num_answered = self._num_failed = 0
        self._running = asyncio.create_task(self._run(model, seconds))

    def stop(self) -> None:
        """End them now; their open requests are cancelled."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self, model: str, seconds: float) -> None:
        """Who is asking at the end may hear the answer, but not for long."""
        ends_s = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds + _LAST_ANSWERS_S), asyncio.TaskGroup() as users:
                for number in range(self._num_users):
                    users.create_task(self._user(number, model, ends_s))

    async def _user(self, number: int, model: str, ends_s: float) -> None:
        for turn in itertools.count(number):
            if time.monotonic() > ends_s:
                return
            question = {"role": "user", "content": _QUESTIONS[turn % len(_QUESTIONS)]}
            try:
                answer = await self._gateway.ask({"model": model, "messages": [question]})
                async for _ in pieces(answer):
                    pass
                failed = answer.status_code != 200
            except (httpx.HTTPError, Away):
                failed = True
            self._num_answered += not failed
            self._num_failed += failed
            # Who was refused does not ask again at once.
            await asyncio.sleep(1.0 if failed else 0.1)
