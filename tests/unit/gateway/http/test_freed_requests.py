"""Requests that are over leave nothing that only the garbage collector finds: it stops the loop."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from services.gateway.http.protocol import WRITER_KEY
from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.test_app import CHAT, Client, Socket, app_of, serve


@contextmanager
def only_counted_references() -> Iterator[list[Any]]:
    """Collects nothing in here; the list has afterwards what a collection would have freed."""
    found: list[Any] = []
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"stream": False}),
        ("/v1/completions", {"model": "demo", "prompt": "hi", "stream": True}),
        ("/v1/responses", {"model": "demo", "input": "hi", "stream": True}),
        ("/v1/messages", CHAT | {"max_tokens": 9}),
    ],
)
def test_an_answered_request_is_freed_at_once(path: str, fields: dict[str, Any]) -> None:
    async def scenario(fleet: Fleet) -> None:
        app = app_of(fleet)

        async def ask() -> None:
            client = Client(fields, path)
            if fields.get("stream"):
                client.scope[WRITER_KEY] = Socket(client)
            await serve(app, client)
            assert client.status == 200

        await ask()
        with only_counted_references() as found:
            await ask()
        ours = [type(each).__name__ for each in found if type(each).__module__[:9] == "services."]
        assert ours == []

    simulate(scenario)
