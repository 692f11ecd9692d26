"""Scripts that share a connection, on a real server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from baton.runtime.redis_connections import connect
from baton.runtime.redis_scripts import RedisScripts
from baton.testing.redis_server import RedisServer

TEXTS = {
    "echo": "return ARGV[1]",
    "number": "return redis.call('INCR', KEYS[1])",
    "wrong": "return redis.call('INCR', ARGV[1])",
}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with TemporaryDirectory(prefix="baton-") as folder, RedisServer(Path(folder)) as server:
        yield server


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(server.url, 0.2, 4)
    assert isinstance(client, Redis)
    yield client
    await client.aclose()


@pytest.fixture
async def scripts(client: Redis) -> AsyncIterator[RedisScripts]:
    scripts = RedisScripts(client, TEXTS)
    yield scripts
    await scripts.close()


async def test_each_caller_gets_its_own_reply_over_one_connection(
    client: Redis, scripts: RedisScripts
) -> None:
    words = [b"word %d" % number for number in range(500)]
    assert await asyncio.gather(*(scripts.run("echo", "key", [word]) for word in words)) == words
    clients = await client.client_list()
    assert len(clients) == 2  # the scripts' and this one's own


async def test_a_caller_that_leaves_does_not_shift_the_replies_of_others(
    scripts: RedisScripts,
) -> None:
    await scripts.run("echo", "key", ["first"])
    left = asyncio.create_task(scripts.run("echo", "key", ["nobody's"]))
    await asyncio.sleep(0)
    left.cancel()
    assert await scripts.run("echo", "key", ["mine"]) == b"mine"


async def test_an_error_is_that_of_its_own_caller(client: Redis, scripts: RedisScripts) -> None:
    await client.set("text", "not a number")
    results = await asyncio.gather(
        scripts.run("wrong", "key", ["text"]),
        scripts.run("echo", "key", ["fine"]),
        return_exceptions=True,
    )
    assert isinstance(results[0], ResponseError)
    assert results[1] == b"fine"


async def test_a_server_that_starts_again_empty_gets_the_scripts_again(
    server: RedisServer, scripts: RedisScripts
) -> None:
    assert await scripts.run("number", "key", []) == 1
    server.kill()
    with pytest.raises(RedisConnectionError):
        await scripts.run("number", "key", [])
    server.start()
    assert await scripts.run("number", "key", []) == 1


async def test_a_script_whose_connection_is_cut_is_run_over_another_one(
    client: Redis, scripts: RedisScripts
) -> None:
    assert await scripts.run("number", "key", []) == 1
    await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await scripts.run("number", "key", []) == 2


async def test_a_silent_server_fails_all_that_wait_and_is_asked_again_when_it_is_back(
    server: RedisServer, scripts: RedisScripts
) -> None:
    await scripts.run("echo", "key", ["first"])
    os.kill(server.pid, signal.SIGSTOP)
    try:
        calls = (scripts.run("echo", "key", [str(number)]) for number in range(3))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, RedisTimeoutError) for result in results)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await scripts.run("echo", "key", ["back"]) == b"back"


async def test_a_replica_is_left_for_the_server_that_takes_writes(
    client: Redis, scripts: RedisScripts
) -> None:
    await scripts.run("number", "key", [])
    before = await client.client_list()
    await client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(RedisConnectionError):
        await scripts.run("number", "key", [])
    await client.execute_command("REPLICAOF", "NO", "ONE")
    assert await scripts.run("number", "key", []) == 2
    after = await client.client_list()
    assert {each["id"] for each in after} != {each["id"] for each in before}
