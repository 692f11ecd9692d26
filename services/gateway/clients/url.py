"""Small documents behind URLs, fetched beside the event loop: the keys of a token issuer."""

import asyncio
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
MAX_BYTES = 256 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


async def fetch(url: str) -> bytes:
    """The document behind a URL: over TLS, or of this machine. Raises OSError, ValueError."""
    try:
        return await asyncio.to_thread(_fetch, url)
    except HTTPException as error:
        raise OSError(f"{url}: {error!r}") from error


def _fetch(url: str) -> bytes:
    _check(url)
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        # Where redirects have led.
        _check(answer.url)
        data: bytes = answer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{url}: larger than {MAX_BYTES} bytes")
    return data


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"{url}: must be https")
