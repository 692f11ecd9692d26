"""The admin pages of several gateway processes as one page each.

Metrics get a label `process`, the process's number: a sum over it is what one process would show.
A process that does not answer is left out. The pages are in the format that was asked for: in
OpenMetrics samples have exemplars.
"""

import http.client
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from prometheus_client import CollectorRegistry

from baton.runtime.admin import encoder

LABEL = "process"
_SAMPLE = re.compile(r"([a-zA-Z0-9_:]+)(.*)")
# Prometheus waits for ten seconds, and a busy process answers late.
_TIMEOUT_S = 3.0
_JSON = "application/json"


class ProcessPages:
    """Asks the processes for their pages. `ports`: the admin ports of those that run, by number."""

    def __init__(self, num_processes: int, ports: Callable[[], Mapping[int, int]]) -> None:
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="page")
        self._ports = ports

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, type and body of a page; a Relay of the admin port."""
        if path == "/metrics":
            encode, content_type = encoder(accept)
            # A registry without metrics: the page of no process.
            bodies = self.bodies(path, accept)
            return 200, content_type, merged_metrics(bodies) + encode(CollectorRegistry())
        bodies = self.bodies(path)
        if path == "/requests":
            return 200, _JSON, _merged_rows(bodies)
        for body in bodies.values():
            return 200, _JSON, body
        return 404, "text/plain", b"not found\n"

    def bodies(self, path: str, accept: str = "") -> dict[int, bytes]:
        """The page of each process that has it, by number."""
        ports = self._ports()
        found = self._threads.map(partial(_fetch, path, accept), ports.values())
        return {n: body for n, body in zip(ports, found, strict=True) if body is not None}


def merged_metrics(pages: Mapping[int, bytes]) -> bytes:
    """Metrics pages in Prometheus' text format as one, whose samples name their process. The end of
    an OpenMetrics page is left out."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, page in pages.items():
        comments, samples = families.setdefault("", ([], []))
        for line in page.decode().splitlines():
            if line == "# EOF":
                continue
            if line.startswith("# HELP "):
                comments, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
            if not line.startswith("#"):
                samples.append(_labelled(line, number))
            elif line not in comments:
                comments.append(line)
    lines = [line for comments, samples in families.values() for line in (*comments, *samples)]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(sample: str, number: int) -> str:
    label = f'{LABEL}="{number}"'
    found = _SAMPLE.fullmatch(sample)
    assert found is not None, sample
    name, rest = found.groups()
    return f"{name}{{{label},{rest[1:]}" if rest[0] == "{" else f"{name}{{{label}}}{rest}"


def _merged_rows(pages: Mapping[int, bytes]) -> bytes:
    rows = [row for page in pages.values() for row in json.loads(page)]
    return json.dumps(sorted(rows, key=lambda row: -float(row["age_s"]))).encode()


def _fetch(path: str, accept: str, port: int) -> bytes | None:
    """A page of one process; None when it has none, or does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
