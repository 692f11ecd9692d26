"""Reads the admin ports of a running stack: metrics pages, and the gateways' open requests."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from baton.localstack.exposition import Samples
from baton.localstack.fleet_view import Reading
from baton.localstack.home import StackState

# For one page: a busy service answers late, and a hanging one must not hold up the others.
_TIMEOUT_S = 2.0
_MAX_PAGE_BYTES = 8 * 2**20
_MAX_READERS = 8

T = TypeVar("T")


class Scraper:
    """Reads all services of a stack at once; close it when done."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_READERS, thread_name_prefix="scrape")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(self, state: StackState, names: Collection[str] = ()) -> Reading:
        """Read every metrics page, or what it says of `names`."""
        pages = {name: f"{url}/metrics" for name, url in admin_urls(state).items()}
        return Reading(time.monotonic(), self._all(pages, partial(Samples.of_page, names=names)))

    def open_requests(self, state: StackState) -> list[dict[str, Any]]:
        """The open requests of all gateways, oldest first."""
        urls = {
            name: f"{url}/requests"
            for name, url in admin_urls(state).items()
            if name.startswith("gateway")
        }
        rows: list[dict[str, Any]] = []
        for gateway, own in self._all(urls, json.loads).items():
            rows += [{"gateway": gateway, **row} for row in own or []]
        return sorted(rows, key=lambda row: -float(row["age_s"]))

    def explanation(self, state: StackState, request_id: str) -> dict[str, Any] | None:
        """The explanation of a request's picks; None when no gateway keeps it."""
        urls = {
            name: f"{url}/explain/{quote(request_id, safe='')}"
            for name, url in admin_urls(state).items()
            if name.startswith("gateway")
        }
        return next((each for each in self._all(urls, json.loads).values() if each), None)

    def _all(self, urls: Mapping[str, str], parse: Callable[[str], T]) -> dict[str, T | None]:
        answers = self._threads.map(partial(_read, parse=parse), urls.values())
        return dict(zip(urls, answers, strict=True))


def admin_urls(state: StackState) -> dict[str, str]:
    """Base URLs of the admin ports, by service."""
    urls = {name: str(row.get("metrics_url", "")) for name, row in state.services.items()}
    return {name: url.removesuffix("/metrics") for name, url in urls.items() if url}


def _read(url: str, parse: Callable[[str], T]) -> T | None:
    """None when there is no answer, or one that cannot be parsed."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return parse(answer.read(_MAX_PAGE_BYTES).decode())
    except (OSError, ValueError, urllib.error.URLError):
        return None
