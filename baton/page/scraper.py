"""Reads the admin ports of a fleet: metrics pages, and the gateways' open requests."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from baton.page.exposition import Samples
from baton.page.fleet_source import Service
from baton.page.fleet_view import Reading

# For one page: a busy service answers late, and a hanging one must not hold up the others.
_TIMEOUT_S = 2.0
_MAX_PAGE_BYTES = 8 * 2**20
_MAX_READERS = 8

T = TypeVar("T")


class Scraper:
    """Reads all services of a fleet at once; close it when done."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_READERS, thread_name_prefix="scrape")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(self, services: Sequence[Service], names: Collection[str] = ()) -> Reading:
        """Read every metrics page, or what it says of `names`."""
        urls = {each.name: each.metrics_url for each in services if each.metrics_url}
        pages = self._all(urls, partial(Samples.of_page, names=names))
        roles = {each.name: each.role for each in services}
        return Reading(time.monotonic(), pages, roles)

    def open_requests(self, services: Sequence[Service]) -> list[dict[str, Any]]:
        """The open requests of all gateways, oldest first."""
        rows: list[dict[str, Any]] = []
        for gateway, own in self._all(_gateways(services, "requests"), json.loads).items():
            rows += [{"gateway": gateway, **row} for row in own or []]
        return sorted(rows, key=lambda row: -float(row["age_s"]))

    def explanation(self, services: Sequence[Service], request_id: str) -> dict[str, Any] | None:
        """The explanation of a request's picks; None when no gateway keeps it."""
        urls = _gateways(services, f"explain/{quote(request_id, safe='')}")
        return next((each for each in self._all(urls, json.loads).values() if each), None)

    def _all(self, urls: Mapping[str, str], parse: Callable[[str], T]) -> dict[str, T | None]:
        answers = self._threads.map(partial(_read, parse=parse), urls.values())
        return dict(zip(urls, answers, strict=True))


def _gateways(services: Sequence[Service], page: str) -> dict[str, str]:
    """The URL of one page of every gateway's admin port."""
    return {
        each.name: f"{each.metrics_url.removesuffix('/metrics')}/{page}"
        for each in services
        if each.role == "gateway" and each.metrics_url
    }


def _read(url: str, parse: Callable[[str], T]) -> T | None:
    """None when there is no answer, or one that cannot be parsed."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return parse(answer.read(_MAX_PAGE_BYTES).decode())
    except (OSError, ValueError, urllib.error.URLError):
        return None
