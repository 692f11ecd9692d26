"""What follows EndpointSlices over minutes in which the API server is away, silent or confused, on
a virtual clock: answers are as the official client returns them."""

import asyncio
import json
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from baton.runtime.discovery.members import Target
from baton.testing.virtual_clock import VirtualClock, run_virtual
from tests import needs

pytest.importorskip("kubernetes", reason=needs.KUBERNETES)

from baton.runtime.discovery import kubernetes as kubernetes_discovery

GONE_BACK = {"code": 504, "message": "Too large resource version: 9, current: 2"}


class Answer:
    """A response: a list's body, or a watch that tells `lines` and then nothing for ever."""

    def __init__(self, status: int, body: Any = None, lines: list[bytes] | None = None) -> None:
        self.status = status
        self.content = self
        self._body = json.dumps(body).encode()
        self._lines = lines or []

    async def read(self) -> bytes:
        return self._body

    async def readline(self) -> bytes:
        if not self._lines:
            await asyncio.Event().wait()
        return self._lines.pop(0)

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(self, *error: object) -> None: ...


class ApiServer:
    """One EndpointSlice with one address. A watch tells it only when it was listed otherwise."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.address = "10.0.0.1"
        self.version = 2
        self.is_away = False
        self.first_events: list[bytes] = []
        self.refuses_watches_from = 1_000_000
        self.asked_s: list[float] = []
        self.num_lists = 0
        self.api_client = SimpleNamespace(close=self._close)

    async def _close(self) -> None: ...

    def change(self, address: str) -> None:
        self.address = address
        self.version += 1

    def _slice(self) -> dict[str, Any]:
        return {
            "metadata": {"name": "workers-1", "resourceVersion": str(self.version)},
            "addressType": "IPv4",
            "ports": [{"name": "grpc", "port": 7200}],
            "endpoints": [{"addresses": [self.address]}],
        }

    async def list_namespaced_endpoint_slice_without_preload_content(
        self, namespace: str, watch: bool = False, resource_version: str = "0", **_: Any
    ) -> Answer:
        self.asked_s.append(self._clock.now())
        if self.is_away:
            raise ConnectionRefusedError("nobody listens")
        if not watch:
            self.num_lists += 1
            metadata = {"resourceVersion": str(self.version)}
            return Answer(200, {"metadata": metadata, "items": [self._slice()]})
        if int(resource_version) > self.refuses_watches_from:
            return Answer(504, GONE_BACK)
        event = json.dumps({"type": "MODIFIED", "object": self._slice()}).encode()
        lines, self.first_events = self.first_events, []
        return Answer(200, lines=lines + [event] * (int(resource_version) < self.version))


def follow(scenario: Any) -> list[list[str]]:
    """What was told, in order, while `scenario(api)` ran."""
    clock = VirtualClock()
    api = ApiServer(clock)
    told: list[list[str]] = []
    connection = kubernetes_discovery.Connection(api, "default")
    source = kubernetes_discovery.EndpointSlices(
        connection, Target.parse("kubernetes:workers:grpc"), Random(1)
    )

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(
                source.follow(lambda members: told.append([m.address for m in members]))
            )
            await scenario(api)
            following.cancel()

    run_virtual(both(), clock)
    return told


def test_ten_minutes_without_an_api_server_change_nothing_and_cost_little() -> None:
    async def scenario(api: ApiServer) -> None:
        await asyncio.sleep(1)
        api.is_away = True
        num_asked = len(api.asked_s)
        await asyncio.sleep(kubernetes_discovery.SILENCE_S)  # until the watch is missed
        await asyncio.sleep(600)
        assert len(api.asked_s) - num_asked < 60
        api.change("10.0.0.2")
        api.is_away = False
        await asyncio.sleep(kubernetes_discovery.MAX_BACKOFF_S)
        assert api.num_lists == 1, "what was missed is told by the watch"

    assert follow(scenario) == [["10.0.0.1:7200"], ["10.0.0.2:7200"]]


def test_a_watch_that_died_without_a_word_is_begun_again() -> None:
    async def scenario(api: ApiServer) -> None:
        await asyncio.sleep(1)
        api.change("10.0.0.2")  # which nobody tells
        await asyncio.sleep(kubernetes_discovery.SILENCE_S + 1)

    assert follow(scenario) == [["10.0.0.1:7200"], ["10.0.0.2:7200"]]


def test_a_quiet_watch_is_no_failure_however_often_it_is_begun_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server whose etcd tells no progress has no bookmarks for a watch of which nothing changes:
    see `test_a_bookmark_tells_the_version_without_an_object`."""

    async def scenario(api: ApiServer) -> None:
        await asyncio.sleep(3 * 3600)
        pauses = [after - before for before, after in pairwise(api.asked_s[1:])]
        assert len(pauses) > 60
        longest_s = kubernetes_discovery.SILENCE_S + kubernetes_discovery.FIRST_BACKOFF_S
        assert max(pauses) <= longest_s
        assert api.num_lists == 1

    assert follow(scenario) == [["10.0.0.1:7200"]]
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_an_api_server_that_went_back_in_time_is_listed_anew() -> None:
    async def scenario(api: ApiServer) -> None:
        api.version = 9
        await asyncio.sleep(1)
        api.change("10.0.0.2")
        api.version = api.refuses_watches_from = 2  # restored from a backup
        await asyncio.sleep(kubernetes_discovery.SILENCE_S + 60)
        assert api.num_lists == 2

    assert follow(scenario) == [["10.0.0.1:7200"], ["10.0.0.2:7200"]]


@pytest.mark.parametrize(
    "line",
    [
        b"<html>",
        b'{"type": "MODIFIED", "object": {"metadata": 1}}',
        b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}',
    ],
)
def test_an_event_that_nobody_understands_is_not_asked_for_again(line: bytes) -> None:
    async def scenario(api: ApiServer) -> None:
        api.first_events = [line]
        await asyncio.sleep(60)
        assert api.num_lists == 2
        assert len(api.asked_s) == 4

    assert follow(scenario) == [["10.0.0.1:7200"]]
