"""The copy of keys and limits in Redis, as those write it who have just changed their home."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from baton.wire.key_registry import BUDGETS_KNOWN, LOADED_KEY, Record, redis_commands

# Runs one command in Redis.
Execute = Callable[..., Awaitable[Any]]


async def publish(execute: Execute, records: Iterable[Record]) -> None:
    """Give Redis records that their home has got.

    Hard budgets stay closed until the quota service has counted all that was spent, or has loaded
    Redis at all. It may get there meanwhile: then they are written once more.
    """
    written = list(records)
    known = await _budgets_are_known(execute)
    while True:
        for record in written:
            for command in redis_commands(record, is_restoring=not known):
                await execute(*command)
        before, known = known, await _budgets_are_known(execute)
        if known == before:
            return


async def _budgets_are_known(execute: Execute) -> bool:
    return bool(await execute("GET", LOADED_KEY) == BUDGETS_KNOWN)
