"""Clients that ask one request after the other, and note what came of each."""

import asyncio

import httpx

from tests.integration.edge.edge_stack import HURRIED, PATIENCE_S

CHAT = "/v1/chat/completions"
NUM_CLIENTS = 4
# Between the requests of a client: a steady load, and no spinning where nobody listens.
PAUSE_S = 0.01
# Answers that did not come: the connection could not be made, or broke.
REFUSED, CUT = "refused", "cut"


class Load:
    """An answer is the name of the gateway that gave it, or its status, or REFUSED, or CUT.

    Leaving it fails when a request has failed, unless `may_fail`.
    """

    def __init__(self, http: httpx.AsyncClient, may_fail: bool = False) -> None:
        self._http = http
        self._may_fail = may_fail
        self.answers: list[str] = []
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(NUM_CLIENTS)]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Nothing is cancelled: an HTTP/2 client may stand still after that."""
        self._is_over = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)
        if not self._may_fail and error == (None, None, None):
            failed = [one for one in self.answers if one in (REFUSED, CUT) or one.isdigit()]
            assert not failed, f"{len(failed)} of {len(self.answers)}: {set(failed)}"

    async def _ask(self) -> None:
        while not self._is_over:
            self.answers.append(await self._outcome())
            await asyncio.sleep(PAUSE_S)

    async def _outcome(self) -> str:
        try:
            answer = await self._http.post(CHAT, content=b"{}", headers={HURRIED: "1"})
        except httpx.ConnectError:
            return REFUSED
        except httpx.HTTPError:
            return CUT
        named = answer.headers.get("x-gateway", "nobody")
        return named if answer.status_code == 200 else str(answer.status_code)

    async def more(self, count: int = 20) -> set[str]:
        """What the next answers are."""
        before = len(self.answers)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.answers) < before + count:
                await asyncio.sleep(0.01)
        return set(self.answers[before:])

    async def until(self, wanted: set[str]) -> None:
        """Until answers are just these."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.more() != wanted:
                pass
