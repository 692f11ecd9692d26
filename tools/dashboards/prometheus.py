"""A real Prometheus, started for a while and asked over its HTTP API."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from baton.localstack.ports import LOOPBACK, free_ports

_START_S = 60.0
_TIMEOUT_S = 30.0
Labels = Mapping[str, str]


class QueryError(Exception):
    """Prometheus refuses the query; the message is its own."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series of an answer; `points` are (unix seconds, value)."""

    labels: Labels
    points: list[tuple[float, float]]


class Prometheus:
    """The API at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def over_time(self, query: str, start_s: float, end_s: float, step_s: float) -> list[Line]:
        """The query's value from `start_s` to `end_s`. Raises QueryError."""
        window = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return self._lines("query_range", {"query": query, **window}, "values")

    def samples(self, selector: str, at_s: float, back_s: float) -> list[Line]:
        """The samples of the selected series in the `back_s` before `at_s`. Raises
        QueryError."""
        asked = {"query": f"{selector}[{back_s:.0f}s]", "time": f"{at_s:.3f}"}
        return self._lines("query", asked, "values")

    def rules(self) -> list[dict[str, Any]]:
        """All alerts with their present state."""
        groups = self._get("rules", {"type": "alert"})["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _lines(self, path: str, asked: Mapping[str, str], key: str) -> list[Line]:
        return [
            Line(row["metric"], [(at, float(value)) for at, value in row[key]])
            for row in self._get(path, asked)["result"]
        ]

    def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise QueryError(json.load(error)["error"]) from error


@contextmanager
def running(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Run Prometheus over `folder`/data until the block ends. Raises TimeoutError."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(dict(config)))
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yaml'}", "--log.level=error",
        f"--storage.tsdb.path={folder / 'data'}", "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            _wait_until_ready(f"http://{address}/-/ready", process)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=_TIMEOUT_S).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"prometheus did not become ready (exit code {process.poll()})")
