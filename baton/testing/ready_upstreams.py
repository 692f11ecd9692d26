"""The upstreams of a FaultProxy that stands in front of several servers, as a load balancer does.

Only those whose `/readyz` answers 200 get new connections, in turn; a connection that stands stays
where it is, ready or not. A silent server keeps its state for MAX_SILENT polls, as with common load
balancers: on a busy machine all may be slow at once. The list of servers is read before each round,
since a server that is started again may listen elsewhere.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from baton.testing.fault_proxy import Address

POLL_S = 0.1
ANSWER_TIMEOUT_S = 1.0
MAX_SILENT = 10


class ReadyUpstreams:
    """`list_urls` gives the base URLs ("http://127.0.0.1:8080") of all servers, ready or not."""

    def __init__(self, list_urls: Callable[[], Sequence[str]], poll_s: float = POLL_S) -> None:
        self._list_urls = list_urls
        self._poll_s = poll_s
        self._ready: list[Address] = []
        self._num_silent: Counter[Address] = Counter()
        self._num_picks = 0

    @property
    def ready(self) -> list[Address]:
        """The servers that were ready at the last poll."""
        return list(self._ready)

    async def run(self) -> None:
        while True:
            addresses = [_address(url) for url in self._list_urls()]
            answers = await asyncio.gather(*(_ask(address) for address in addresses))
            pairs = zip(addresses, answers, strict=True)
            self._ready = [address for address, ready in pairs if self._is_up(address, ready)]
            await asyncio.sleep(self._poll_s)

    def _is_up(self, address: Address, answer: bool | None) -> bool:
        """True if the server counts as ready after this answer; None = it was silent."""
        if answer is not None:
            self._num_silent[address] = 0
            return answer
        self._num_silent[address] += 1
        return address in self._ready and self._num_silent[address] < MAX_SILENT

    def candidates(self) -> list[Address]:
        if not self._ready:
            return []
        self._num_picks += 1
        first = self._num_picks % len(self._ready)
        return self._ready[first:] + self._ready[:first]


async def is_ready(address: Address) -> bool:
    """True if `/readyz` of the server answers 200."""
    return bool(await _ask(address))


async def _ask(address: Address) -> bool | None:
    """The status of the server's `/readyz`; None without an answer."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return status_line.split()[1:2] == [b"200"] if status_line else None


def _address(url: str) -> Address:
    parts = urlsplit(url)
    assert parts.hostname, f"{url!r} names no host"
    assert parts.port, f"{url!r} names no port"
    return parts.hostname, parts.port
