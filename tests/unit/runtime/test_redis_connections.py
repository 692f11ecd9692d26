import asyncio
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool

from baton.runtime.redis_connections import connect


class FakeConnection:
    """A connection to nothing, which may have data that nobody asked for."""

    def __init__(self, **options: Any) -> None:
        self.num_connects = 0
        self.is_spoiled = False

    async def connect(self) -> None:
        self.num_connects += 1

    async def disconnect(self, **options: Any) -> None:
        self.is_spoiled = False

    async def can_read(self) -> bool:
        return self.is_spoiled

    def should_reconnect(self) -> bool:
        return False

    def set_re_auth_token(self, token: object) -> None: ...

    async def re_auth(self) -> None: ...


@pytest.fixture
def pool() -> BlockingConnectionPool:
    pool: BlockingConnectionPool = connect("redis://nowhere", 5, 1).connection_pool
    pool.connection_class = FakeConnection
    return pool


async def test_a_connection_that_is_back_is_handed_out_again(pool: BlockingConnectionPool) -> None:
    first = await pool.get_connection()
    await pool.release(first)
    assert await pool.get_connection() is first


async def test_callers_wait_in_order_for_the_last_connection(pool: BlockingConnectionPool) -> None:
    async def use(name: str) -> None:
        connection = await pool.get_connection()
        order.append(name)
        await asyncio.sleep(0)
        await pool.release(connection)

    order: list[str] = []
    await asyncio.gather(*(use(name) for name in "abcd"))
    assert sorted(order) == list("abcd")
    assert order[0] == "a"
    await asyncio.gather(*(use(name) for name in "ef"))
    assert order[4:] == ["e", "f"]


async def test_a_connection_with_an_answer_to_nobody_is_opened_again(
    pool: BlockingConnectionPool,
) -> None:
    spoiled: Any = await pool.get_connection()
    await pool.release(spoiled)
    spoiled.is_spoiled, num_connects = True, spoiled.num_connects
    assert await pool.get_connection() is spoiled
    assert spoiled.num_connects == num_connects + 2
    assert not spoiled.is_spoiled
