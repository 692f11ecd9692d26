"""Errors of the Redis client: the store is away, or there is a bug."""

import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from baton.wire.failures import Unavailable
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import new_key, redis_commands
from services.quota.instruments import KNOWN_SERIES, QUOTA_STORE_FAILURES
from services.quota.outcomes import SCRIPT_NAMES
from services.quota.store import RedisStore


class _Raising:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def execute_command(self, *command: object) -> Any:
        raise self._error


def _store(error: Exception) -> RedisStore:
    return RedisStore(cast(Redis, _Raising(error)))


async def test_a_connection_that_redis_closed_before_the_first_write_is_an_outage() -> None:
    # As uvloop says it, which the client passes on as it is.
    error = RuntimeError(
        "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
    )
    with pytest.raises(Unavailable) as raised:
        await _store(error).execute("GET", "key")
    assert raised.value.reason == "quota_unavailable"


async def test_any_other_runtime_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        await _store(RuntimeError("a bug")).execute("GET", "key")


def test_failures_of_every_call_are_counted_from_zero_on() -> None:
    sources = (Path(__file__).parents[3] / "services/quota").rglob("*.py")
    code = "".join(each.read_text() for each in sources)
    commands = set(re.findall(r'execute\(\s*"([A-Z]+)"', code))
    assert commands, "the commands stand where they are executed"
    known = {call for (call,) in KNOWN_SERIES[QUOTA_STORE_FAILURES]}
    # Those that baton.keys.redis_copy runs, for the admin API, stand in baton.wire.key_registry.
    _, record = new_key(bytes(32), "acme", KeyLimits(), now_unix_s=0)
    records = [msgspec.structs.replace(record, revoked=revoked) for revoked in (True, False)]
    copied = {str(command[0]) for record in records for command in redis_commands(record)}
    assert commands | copied | set(SCRIPT_NAMES) | {"INFO", "pipeline"} == known
