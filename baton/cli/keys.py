"""`baton keys create | list | revoke`: API keys in their registry and, at once, in Redis.

The key itself is shown once and stored nowhere; the registry keeps its digest. With `--release` the
keys are those of a release of the Helm chart.
"""

import argparse
import time
from typing import Any

import msgspec

from baton.cli.key_homes import ClusterKeys, KeyHome, LocalKeys
from baton.localstack.home import Home
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import KeyRecord, RegistryError, Revocation

PERIODS = ("day", "month")


def add_parsers(commands: Any) -> None:
    keys = commands.add_parser("keys", help="API keys: create, list, revoke")
    actions = keys.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create", help="make a key and show it once")
    create.add_argument("--tenant", required=True, metavar="T")
    create.add_argument("--rpm", type=int, default=0, metavar="N", help="requests a minute")
    create.add_argument("--tpm", type=int, default=0, metavar="N", help="tokens a minute")
    create.add_argument("--concurrency", type=int, default=0, metavar="N", help="open requests")
    create.add_argument("--budget", default="", metavar="N/day|N/month", help="tokens, UTC windows")
    create.add_argument(
        "--hard-budget", action="store_true", help="never exceed it, also while Redis is away"
    )
    create.add_argument("--models", default="", metavar="A,B", help="allowed models; empty = all")
    create.add_argument(
        "--priority", type=int, default=0, metavar="N", help="0 to 255; larger goes first"
    )
    weight_help = "share beside other tenants of the same priority"
    create.add_argument("--weight", type=float, default=1.0, metavar="W", help=weight_help)
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="all keys: ids and limits, never the keys")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="refuse requests with this key from now on")
    revoke.add_argument("key_id")
    revoke.set_defaults(run=_revoke)
    for action in (create, listing, revoke):
        action.add_argument(
            "--release", default="", metavar="NAME", help="of the Helm chart, by kubectl"
        )
        action.add_argument("--namespace", default="", help="of the release")


def parse_budget(text: str) -> tuple[int, str]:
    """ "5000/day" -> (5000, "day"). Raises RegistryError."""
    if not text:
        return 0, ""
    amount, _, period = text.partition("/")
    is_number = amount.isascii() and amount.isdigit()
    if period not in PERIODS or not is_number or int(amount) == 0:
        raise RegistryError(f"--budget {text!r}: say N/day or N/month, N tokens")
    return int(amount), period


def create_key(
    keys: KeyHome,
    tenant: str,
    limits: KeyLimits,
    models: tuple[str, ...] = (),
    *,
    priority: int = 0,
    weight: float = 1.0,
) -> str:
    """Make a key, record it durably and give it to a running stack; returns the key."""
    api_key, record = key_registry.new_key(
        keys.server_secret(),
        tenant,
        limits,
        now_unix_s=time.time(),
        allowed_models=models,
        priority=priority,
        weight=weight,
    )
    keys.append(record)
    keys.publish(record)
    return api_key


def _keys_of(arguments: argparse.Namespace) -> KeyHome:
    if arguments.release:
        return ClusterKeys(arguments.release, arguments.namespace)
    return LocalKeys(Home.of_environment())


def _create(arguments: argparse.Namespace) -> int:
    if not arguments.release:
        Home.of_environment().create()
    amount, period = parse_budget(arguments.budget)
    for name in ("rpm", "tpm", "concurrency"):
        if (limit := getattr(arguments, name)) < 0:
            raise RegistryError(f"--{name} {limit}: must be 0 or more; 0 = unlimited")
    if not 0 <= arguments.priority <= key_registry.MAX_PRIORITY:
        raise RegistryError(
            f"--priority {arguments.priority}: must be 0 to {key_registry.MAX_PRIORITY}"
        )
    if not key_registry.MIN_WEIGHT <= arguments.weight <= key_registry.MAX_WEIGHT:
        raise RegistryError(
            f"--weight {arguments.weight:g}: must be {key_registry.MIN_WEIGHT} to "
            f"{key_registry.MAX_WEIGHT:g}"
        )
    try:
        limits = KeyLimits(
            requests_per_minute=arguments.rpm,
            tokens_per_minute=arguments.tpm,
            concurrency=arguments.concurrency,
            budget_tokens=amount,
            budget_period=period,  # type: ignore[arg-type]
            hard_budget=arguments.hard_budget,
        )
    except ValueError as error:
        raise RegistryError(str(error)) from error
    models = tuple(name for name in arguments.models.split(",") if name)
    print(
        create_key(
            _keys_of(arguments),
            arguments.tenant,
            limits,
            models,
            priority=arguments.priority,
            weight=arguments.weight,
        )
    )
    return 0


def _list(arguments: argparse.Namespace) -> int:
    for record in _keys_of(arguments).read().keys.values():
        print(_line(record))
    return 0


def _line(record: KeyRecord) -> str:
    limits = record.limits
    parts = [
        record.key_id,
        f"{record.shown}...",
        f"tenant={record.tenant}",
        *(
            f"{name}={value}"
            for name, value in (
                ("rpm", limits.requests_per_minute),
                ("tpm", limits.tokens_per_minute),
                ("concurrency", limits.concurrency),
                ("priority", record.priority),
                ("weight", "" if record.weight == 1 else f"{record.weight:g}"),
            )
            if value
        ),
    ]
    if limits.budget_tokens:
        hard = ", hard" if limits.hard_budget else ""
        parts.append(f"budget={limits.budget_tokens}/{limits.budget_period}{hard}")
    if record.revoked:
        parts.append("REVOKED")
    return "  ".join(parts)


def _revoke(arguments: argparse.Namespace) -> int:
    keys = _keys_of(arguments)
    record = keys.read().keys.get(arguments.key_id)
    if record is None:
        raise RegistryError(
            f"key id {arguments.key_id!r} is not in the registry; see: baton keys list"
        )
    keys.append(Revocation(arguments.key_id, int(time.time())))
    keys.publish(msgspec.structs.replace(record, revoked=True))
    print(f"revoked {arguments.key_id}: refused within 5 s")
    return 0
