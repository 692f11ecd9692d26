"""The client of safety services, against the example of one over real sockets."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.wire.failures import Unavailable
from examples.word_list_hook import WordListServer
from services.gateway.clients.moderation import ModerationClient


@pytest.fixture
def url() -> Iterator[str]:
    with WordListServer(["forbidden", "two words"], port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/moderations"
        server.shutdown()
        thread.join()


async def test_texts_with_a_listed_word_are_flagged(url: str, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    client = ModerationClient(url, "word-list", key_file)
    try:
        assert not await client.judge(["a good text", "and unforbidden"])
        assert await client.judge(["a good text", "a Forbidden one"])
        assert await client.judge(["it has two words."])
    finally:
        await client.close()


async def test_a_service_that_does_not_judge_is_unavailable(url: str) -> None:
    client = ModerationClient(url, "", None)
    try:
        with pytest.raises(Unavailable):
            await client.judge([])
        with pytest.raises(Unavailable):
            await ModerationClient("http://127.0.0.1:1/", "", None).judge(["a"])
    finally:
        await client.close()


async def test_a_failure_does_not_tell_the_url() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = ModerationClient(f"http://user:hunter2@127.0.0.1:{port}/?key=hunter2", "", None)
    async with server:
        with pytest.raises(Unavailable, match="status 503") as raised:
            await client.judge(["a"])
        assert "hunter2" not in str(raised.value)
        await client.close()
