"""Quota's admin API as the page uses it: keys, limits and budgets (decision 0044).

The token is read here for each call and never leaves this process but to quota.
"""

import asyncio
from pathlib import Path

import httpx

from baton.page.answers import Away

_TIMEOUT_S = 10.0


class QuotaClient:
    """The admin API of one quota process; all of them share their registry."""

    def __init__(self, address: str, token: Path | None) -> None:
        """Without an address or a token's file, nothing can be asked."""
        self._address = address
        self._token = token
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, verify=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: bytes) -> httpx.Response:
        """Ask with the token. Raises Away, httpx.HTTPError."""
        if not self._address or self._token is None:
            raise Away("there is no admin API")
        token = await asyncio.to_thread(self._token.read_text)
        headers = {"Authorization": f"Bearer {token.strip()}"}
        url = f"http://{self._address}/admin/v1/{path}"
        return await self._http.request(method, url, content=body, headers=headers)
