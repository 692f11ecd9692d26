"""Manages API keys where the quota service runs: `python -m services.quota.keys create | list |
revoke | load`.

It reads the service's own variables. The registry file is the truth and is written first, Redis has
a copy that counts at once. `load` gives Redis the lines of a registry that is kept elsewhere (a
Kubernetes Secret, see `baton keys --release`). A key is shown once; only its digest is stored.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import redis

from baton.keys import changes
from baton.keys.changes import NewKey
from baton.keys.homes import FileHome
from baton.keys.redis_copy import publish
from baton.runtime import environment
from baton.runtime.redis_connections import connect, password_in
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import KeyRecord, RegistryError
from services.quota.settings import PREFIX, Settings

_TIMEOUT_S = 5.0
# The Redis keys of all records (key_registry.principal_key).
_PATTERN = key_registry.principal_key(b"") + "*"


async def create(client: Any, settings: Settings, arguments: argparse.Namespace) -> str:
    """Make a key and return it. Raises RegistryError for a bad name or limit."""
    if settings.secret_file is None:
        raise RegistryError(f"{PREFIX}SECRET_FILE is not set")
    try:
        limits = KeyLimits(
            requests_per_minute=arguments.rpm,
            tokens_per_minute=arguments.tpm,
            concurrency=arguments.concurrency,
            budget_tokens=arguments.budget,
            budget_period=arguments.per if arguments.budget else "",
            hard_budget=arguments.hard_budget,
        )
    except ValueError as error:
        raise RegistryError(str(error)) from error
    models = tuple(name for name in arguments.models.split(",") if name)
    new = NewKey(arguments.tenant, limits, models, arguments.priority, arguments.weight)
    secret = key_registry.read_secret(settings.secret_file)
    with _hint_at_the_chart():
        api_key, record = changes.create(_home(settings), secret, new)
    await publish(client.execute_command, [record])
    return api_key


async def records(client: Any) -> AsyncIterator[KeyRecord]:
    """Yield the records of all keys that are not revoked. Raises RegistryError."""
    async for name in client.scan_iter(match=_PATTERN, count=500):
        if (data := await client.get(name)) is not None:
            yield key_registry.decode_record(data)


async def revoke(client: Any, settings: Settings, key_id: str) -> None:
    """Revoke a key: within the quota service's `fresh_for_s` all gateways refuse it.

    A key that the registry lacks (an earlier bootstrap key) is in Redis alone, and so is its
    revocation. Raises RegistryError for an unknown id.
    """
    if settings.registry_file and key_id in key_registry.read(settings.registry_file).keys:
        with _hint_at_the_chart():
            record = changes.revoke(_home(settings), key_id)
        await publish(client.execute_command, [record])
        return
    async for record in records(client):
        if record.key_id == key_id:
            revoked = msgspec.structs.replace(record, revoked=True)
            await publish(client.execute_command, [revoked])
            return
    raise RegistryError(f"key {key_id!r} does not exist; `list` shows all keys")


async def load(client: Any, data: bytes) -> None:
    """Give Redis the keys and limits of a registry, revoked keys included. Raises RegistryError."""
    entries = key_registry.parse(data, "standard input")
    await publish(client.execute_command, entries.records())


def _home(settings: Settings) -> FileHome:
    if settings.registry_file is None:
        raise RegistryError(f"{PREFIX}REGISTRY_FILE is not set: a key must survive a lost Redis")
    return FileHome(settings.registry_file)


@contextmanager
def _hint_at_the_chart() -> Iterator[None]:
    try:
        yield
    except RegistryError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise RegistryError(f"{error}; with the chart use baton keys --release") from error


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="services.quota.keys", description="API keys")
    actions = top.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create", help="make a key and show it once")
    create.add_argument("--tenant", required=True)
    create.add_argument("--rpm", type=int, default=0, help="requests a minute; 0 = unlimited")
    create.add_argument("--tpm", type=int, default=0, help="tokens a minute")
    create.add_argument("--concurrency", type=int, default=0, help="open requests")
    create.add_argument("--budget", type=int, default=0, help="tokens in each UTC day or month")
    create.add_argument("--per", choices=("day", "month"), default="month")
    hard_help = "never exceed the budget, also while Redis is away"
    create.add_argument("--hard-budget", action="store_true", help=hard_help)
    create.add_argument("--models", default="", help="A,B: allowed models; empty = all")
    create.add_argument("--priority", type=int, default=0, help="0 to 255; larger goes first")
    weight_help = "share beside other tenants of the same priority, 0.01 to 100"
    create.add_argument("--weight", type=float, default=1.0, help=weight_help)
    actions.add_parser("list", help="ids and limits, never the keys")
    actions.add_parser("revoke", help="refuse a key from now on").add_argument("key_id")
    actions.add_parser("load", help="give Redis the registry lines of the standard input")
    return top


async def act(client: Any, settings: Settings, arguments: argparse.Namespace) -> None:
    """Do what the arguments say. Raises RegistryError and redis's errors."""
    if arguments.action == "create":
        print(await create(client, settings, arguments))
    elif arguments.action == "revoke":
        await revoke(client, settings, arguments.key_id)
    elif arguments.action == "load":
        await load(client, sys.stdin.buffer.read())
    else:
        found = [record async for record in records(client)]
        for record in sorted(found, key=lambda record: (record.tenant, record.key_id)):
            limits = msgspec.json.encode(record.limits).decode()
            print(
                f"{record.key_id}  tenant={record.tenant}  {record.shown}...  "
                f"priority={record.priority}  weight={record.weight:g}  {limits}"
            )


async def _run(settings: Settings, arguments: argparse.Namespace) -> None:
    client = connect(
        settings.redis_url,
        _TIMEOUT_S,
        2,
        password_in(settings.redis_password_file, settings.redis_username),
        password_in(settings.redis_sentinel_password_file),
    )
    try:
        await act(client, settings, arguments)
    finally:
        await client.aclose()


def main(argv: list[str]) -> int:
    arguments = parser().parse_args(argv)
    settings = environment.load(Settings, PREFIX)
    try:
        asyncio.run(_run(settings, arguments))
    except (RegistryError, redis.RedisError, redis.exceptions.RedisClusterException) as error:
        print(str(error)[:200], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
