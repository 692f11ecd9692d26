"""How quota logs in to Redis: a password from a file, read anew for each connection, and TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from baton.runtime.redis_connections import PasswordFile, connect
from baton.testing.certificates import Authority
from baton.testing.redis_server import RedisServer
from baton.wire.failures import Unavailable
from services.quota.store import RedisStore

URL_OPTIONS = "ssl_ca_certs={ca}&ssl_certfile={cert}&ssl_keyfile={key}"


@asynccontextmanager
async def opened(url: str, credentials: PasswordFile | None = None) -> AsyncIterator[RedisStore]:
    store = RedisStore(connect(url, 60.0, 2, credentials))
    yield store
    await store.close()


async def test_the_password_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    password = tmp_path / "password"
    with TemporaryDirectory(prefix="baton-") as folder:
        with RedisServer(Path(folder), "--requirepass", "first") as redis:
            async with opened(redis.url) as store:
                with pytest.raises(Unavailable):
                    await store.execute("SET", "a", "1")
            password.write_text("first\n")
            async with opened(redis.url, PasswordFile(password)) as store:
                await store.execute("ACL", "SETUSER", "quota", "on", ">second", "~*", "+@all")
                await store.execute("CONFIG", "SET", "requirepass", "third")
            password.write_text("second")
            async with opened(redis.url, PasswordFile(password, "quota")) as store:
                assert await store.execute("ACL", "WHOAMI") == b"quota"
            password.unlink()
            async with opened(redis.url, PasswordFile(password)) as store:
                with pytest.raises(Unavailable):
                    await store.execute("PING")


async def relay_in_tls(files, socket_path: Path) -> asyncio.Server:
    """TLS in front of a Redis without it, which asks its clients for certificates."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(socket_path)
        await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    return await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)


async def test_tls_is_spoken_where_the_address_says_so(tmp_path: Path) -> None:
    files = Authority(tmp_path, "ours").issue(tmp_path / "member", san="DNS:localhost")
    options = URL_OPTIONS.format(ca=files.ca, cert=files.cert, key=files.key)
    with TemporaryDirectory(prefix="baton-") as folder, RedisServer(Path(folder)) as redis:
        server = await relay_in_tls(files, redis.socket_path)
        port = server.sockets[0].getsockname()[1]
        async with opened(f"rediss://localhost:{port}/0?{options}") as store:
            assert await store.execute("PING") in (b"PONG", True)
        async with opened(f"rediss://127.0.0.1:{port}/0?{options}") as store:
            with pytest.raises(Unavailable):  # the certificate names localhost
                await store.execute("PING")
        server.close()
