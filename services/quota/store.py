"""The store: all access to Redis. Runs scripts by digest and commands, and translates errors.

Every failure of Redis (gone, slow, out of memory, read-only) is an
`Unavailable("quota_unavailable")` for the call that met it; the next call tries again. A corrupt
value is a `StoreRefused`, so that loops over tenants go on with the next one. All scripts are
idempotent, so a call whose pooled connection is dead is repeated once, immediately. Knows nothing
of leases or limits.
"""

from collections.abc import Awaitable, Iterable, Sequence
from importlib import resources
from typing import Any, Protocol, TypeVar

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ResponseError

from baton.runtime import logs
from baton.runtime.redis_scripts import FAILURES, RedisScripts, is_of_redis
from baton.wire.failures import Unavailable
from services.quota import instruments
from services.quota.outcomes import SCRIPT_NAMES

Argument = str | bytes | int
T = TypeVar("T")

_SHARED_PARTS = ("accounts", "leases")
_COMMANDS_PER_ROUND_TRIP = 1000
_log = logs.get("quota.store")


class StoreRefused(Unavailable):
    """Redis answers, but refuses this call: most likely a value has the wrong type."""


class Store(Protocol):
    """The store as ledger, registry and archiver use it. Every method may raise Unavailable."""

    async def run_script(self, name: str, root: str, arguments: Sequence[Argument]) -> Any:
        """Run one of SCRIPT_NAMES, atomically, on the keys below `root`."""

    async def execute(self, *command: Argument) -> Any:
        """Run one command; replies are bytes, integers or lists of them."""

    async def execute_all(self, commands: Iterable[Sequence[Argument]]) -> None:
        """Run many commands in few round trips, in order."""

    async def identity(self) -> str:
        """Name the servers that hold the data now, each in this life. With another name the last
        writes may be lost: a server was started again, or a replica promoted."""


def script_text(name: str) -> str:
    """Return a whole script: the shared parts first, because Redis 6.2 has no libraries."""
    folder = resources.files("services.quota") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text() for part in (*_SHARED_PARTS, name))


class RedisStore:
    """A Store over a redis.asyncio client (or an in-process fake of one)."""

    def __init__(self, client: Redis | RedisCluster) -> None:
        self._client = client
        # Only the first failure of an outage is logged.
        self._failing = False
        texts = {name: script_text(name) for name in SCRIPT_NAMES}
        self._scripts = RedisScripts(client, texts)

    async def run_script(self, name: str, root: str, arguments: Sequence[Argument]) -> Any:
        return await self._answer(name, self._scripts.run(name, root, arguments))

    async def execute(self, *command: Argument) -> Any:
        return await self._answer(str(command[0]), self._client.execute_command(*command))

    async def execute_all(self, commands: Iterable[Sequence[Argument]]) -> None:
        batch = list(commands)
        for start in range(0, len(batch), _COMMANDS_PER_ROUND_TRIP):
            part = batch[start : start + _COMMANDS_PER_ROUND_TRIP]
            await self._answer("pipeline", self._run_pipeline(part))

    async def _run_pipeline(self, commands: Iterable[Sequence[Argument]]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            await pipeline.execute()

    async def identity(self) -> str:
        return await self._answer("INFO", self._identity())

    async def _identity(self) -> str:
        if not isinstance(self._client, RedisCluster):
            return str((await self._client.info("server"))["run_id"])
        told = await self._client.info("server", target_nodes=RedisCluster.PRIMARIES)
        nodes = [told] if "run_id" in told else told.values()
        return " ".join(sorted(str(node["run_id"]) for node in nodes))

    async def close(self) -> None:
        await self._scripts.close()
        await self._client.aclose()

    async def _answer(self, call: str, answered: Awaitable[T]) -> T:
        """Wait for an answer of Redis, whose failure is a BatonError."""
        try:
            answer = await answered
        except FAILURES as error:
            if not is_of_redis(error):
                raise
            instruments.QUOTA_STORE_FAILURES.labels(call).inc()
            if not self._failing or isinstance(error, ResponseError):
                _log.warning("redis_failed", call=call, kind=type(error).__name__, error=str(error))
            self._failing = not isinstance(error, ResponseError)
            # Subclasses of ResponseError say that the server as a whole refuses to work.
            kind = StoreRefused if type(error) is ResponseError else Unavailable
            raise kind(
                "the quota store does not answer", reason="quota_unavailable", retry_after_s=1
            ) from error
        if self._failing:
            self._failing = False
            _log.info("redis_answers_again", call=call)
        return answer
