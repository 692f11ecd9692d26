"""Lua scripts on Redis, and the exceptions with which a client of Redis fails."""

from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

# All that a call may raise when Redis fails; `is_of_redis` tells those that mean something else.
FAILURES = (RedisError, RedisClusterException, RuntimeError)
# uvloop's message when Redis closed a connection before the first write; redis-py passes it on.
_CLOSED = "the handler is closed"


def is_of_redis(error: Exception) -> bool:
    """True when Redis, or the connection to it, failed; False for a bug of ours."""
    return not isinstance(error, RuntimeError) or _CLOSED in str(error)


class RedisScripts:
    """Scripts by name, on one client (or an in-process fake of one)."""

    def __init__(self, client: Redis | RedisCluster, texts: Mapping[str, str]) -> None:
        self._client = client
        self._texts = texts
        # Redis names scripts by their SHA-1.
        self._digests = {
            name: sha1(text.encode(), usedforsecurity=False).hexdigest()
            for name, text in texts.items()
        }

    async def run(self, name: str, root: str, arguments: Sequence[str | bytes | float]) -> Any:
        """Run a script on the keys below `root`; a server that does not know it gets its text.

        Raises one of FAILURES.
        """
        try:
            return await self._client.evalsha(self._digests[name], 1, root, *arguments)
        except NoScriptError:
            return await self._client.eval(self._texts[name], 1, root, *arguments)
