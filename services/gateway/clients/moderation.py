"""A safety service over HTTP, in the form of OpenAI's /v1/moderations."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec

from baton.wire.failures import Unavailable

MAX_CONNECTIONS = 64


class _Result(msgspec.Struct, frozen=True):
    flagged: bool


class _Results(msgspec.Struct, frozen=True):
    results: list[_Result]


_decode = msgspec.json.Decoder(_Results).decode


class ModerationClient:
    """Asks one service: the Judge of a safety hook."""

    def __init__(self, url: str, model: str, key_file: Path | None) -> None:
        """`model`: empty = the service's own choice. `key_file` has its API key."""
        self._url = url
        self._model = model
        headers = {"content-type": "application/json"}
        if key_file is not None:
            headers["authorization"] = f"Bearer {key_file.read_text().strip()}"
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
        # The hook has the time limit.
        self._http = httpx.AsyncClient(headers=headers, limits=limits, timeout=None)

    async def judge(self, texts: Sequence[str]) -> bool:
        """True when the service flags one of the texts. Raises Unavailable."""
        body: dict[str, object] = {"input": list(texts)}
        if self._model:
            body["model"] = self._model
        try:
            answer = await self._http.post(self._url, content=msgspec.json.encode(body))
            answer.raise_for_status()
            found = _decode(answer.content)
        except httpx.HTTPStatusError as error:
            # Its text has the URL, which may have a secret in it.
            raise Unavailable(f"safety service: status {error.response.status_code}") from None
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            raise Unavailable(f"safety service: {error!r}") from error
        if not found.results:
            raise Unavailable("safety service: no results")
        return any(result.flagged for result in found.results)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()
