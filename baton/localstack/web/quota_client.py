"""Quota's admin API as the page uses it: keys, limits and budgets (decision 0044).

The token is read here for each call and never leaves this process but to quota.
"""

import asyncio

import httpx

from baton.localstack.home import Home
from baton.localstack.web.gateway_client import NoStack

_TIMEOUT_S = 10.0


class QuotaClient:
    """The admin API of one quota process; all of them share their registry."""

    def __init__(self, home: Home, address: str) -> None:
        self._home = home
        self._address = address
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, verify=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: bytes) -> httpx.Response:
        """Ask with the token. Raises NoStack, httpx.HTTPError."""
        if not self._address:
            raise NoStack("this stack has no admin API")
        token = await asyncio.to_thread(self._home.admin_token.read_text)
        headers = {"Authorization": f"Bearer {token.strip()}"}
        url = f"http://{self._address}/admin/v1/{path}"
        return await self._http.request(method, url, content=body, headers=headers)
