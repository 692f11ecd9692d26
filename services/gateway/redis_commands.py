"""The gateway's way to Redis: runs the scripts of its store, and commands.

Every failure of Redis (gone, slow, out of memory, read-only) is `Unavailable`, with the reason
"store_unavailable", for the call that met it; the next call tries again.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from baton.runtime import logs
from baton.runtime.redis_scripts import FAILURES, RedisScripts, is_of_redis
from baton.wire.failures import Unavailable
from services.gateway import instruments
from services.gateway.batches import store as batches
from services.gateway.stored.store import SCRIPT_NAMES, Argument, script_text

_log = logs.get("store")


class RedisCommands:
    """Scripts and commands over a redis.asyncio client (or an in-process fake of one)."""

    def __init__(self, client: Redis | RedisCluster) -> None:
        self._client = client
        # Only the first failure of an outage is logged.
        self._failing = False
        texts = {name: script_text(name) for name in SCRIPT_NAMES}
        texts |= {name: batches.script_text(name) for name in batches.SCRIPT_NAMES}
        self._scripts = RedisScripts(client, texts)

    async def run_script(self, name: str, root: str, arguments: Sequence[Argument]) -> Any:
        async with self._translated(name):
            return await self._scripts.run(name, root, arguments)

    async def execute(self, *command: Argument) -> Any:
        async with self._translated(str(command[0])):
            return await self._client.execute_command(*command)

    async def used_share(self) -> float:
        async with self._translated("INFO"):
            if not isinstance(self._client, RedisCluster):
                nodes = [await self._client.info("memory")]
            else:
                told = await self._client.info("memory", target_nodes=RedisCluster.PRIMARIES)
                nodes = [told] if "used_memory" in told else list(told.values())
        shares = [node["used_memory"] / node["maxmemory"] for node in map(_limited, nodes)]
        return float(max(shares))

    async def close(self) -> None:
        """Close the connections."""
        await self._scripts.close()
        await self._client.aclose()

    @asynccontextmanager
    async def _translated(self, call: str) -> AsyncIterator[None]:
        try:
            yield
        except FAILURES as error:
            if not is_of_redis(error):
                raise
            instruments.GATEWAY_STORE_FAILURES.labels(call).inc()
            if not self._failing:
                _log.warning("store_failed", call=call, kind=type(error).__name__)
            self._failing = True
            raise Unavailable(
                "the store of responses does not answer",
                reason="store_unavailable",
                retry_after_s=1,
            ) from error
        if self._failing:
            self._failing = False
            _log.info("store_answers_again", call=call)


def _limited(told: dict[str, Any]) -> dict[str, Any]:
    """The memory of a node; one without a limit is never full."""
    return told if told.get("maxmemory") else {"used_memory": 0, "maxmemory": 1}
