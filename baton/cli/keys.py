"""`baton keys create | limit | list | revoke`: API keys and limits in their registry and, at once,
in Redis.

The key itself is shown once and stored nowhere; the registry keeps its digest. With `--release` the
keys are those of a release of the Helm chart.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from baton.cli.key_homes import ClusterKeys, Keys, LocalKeys
from baton.cli.parser import nearest
from baton.keys import changes
from baton.keys.changes import NewKey
from baton.keys.homes import RegistryHome
from baton.localstack.home import ENV_VARIABLE, FOLDER, Home, StackState
from baton.wire import key_registry, usage_log
from baton.wire.key_limits import KeyLimits, ModelLimits, OwnerLimits
from baton.wire.key_registry import KeyRecord, RegistryError

PERIODS = ("day", "month")
# Of the usage archive, for the time when a key was last used.
_DAYS_LOOKED_AT = 31


def add_parsers(commands: Any) -> None:
    keys = commands.add_parser("keys", help="API keys: create, limit, list, revoke")
    words = "create, limit, list or revoke"
    actions = keys.add_subparsers(dest="action", required=True, metavar=words)
    create = actions.add_parser("create", help="make a key and show it once")
    tenant_help = "ORGANISATION/NAME for a tenant of an organisation"
    create.add_argument("--tenant", required=True, metavar="T", help=tenant_help)
    _add_limits(create)
    create.add_argument("--models", default="", metavar="A,B", help="allowed models; empty = all")
    create.add_argument(
        "--priority", type=int, default=0, metavar="N", help="0 to 255; larger goes first"
    )
    weight_help = "share beside other tenants of the same priority"
    create.add_argument("--weight", type=float, default=1.0, metavar="W", help=weight_help)
    identity_help = "jwt:NAME or cert:NAME: tokens and certificates that stand for the key"
    create.add_argument("--identity", default="", metavar="KIND:NAME", help=identity_help)
    help_text = "make a .baton in this folder for a stack to come"
    create.add_argument("--new", action="store_true", help=help_text)
    create.set_defaults(run=_create)
    limit = actions.add_parser("limit", help="set the limits of a tenant, an organisation or a key")
    owner = limit.add_mutually_exclusive_group(required=True)
    owner.add_argument("--tenant", default="", metavar="T", help="all its keys together")
    owner.add_argument("--organisation", default="", metavar="O", help="all its tenants together")
    owner.add_argument("--key", default="", metavar="KEY_ID")
    limit.add_argument("--model", default="", metavar="M", help="of this model only, beside others")
    _add_limits(limit)
    limit.set_defaults(run=_limit)
    listing = actions.add_parser("list", help="all keys: ids and limits, never the keys")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="refuse requests with this key from now on")
    revoke.add_argument("key_id")
    revoke.set_defaults(run=_revoke)
    for action in (create, limit, listing, revoke):
        action.add_argument(
            "--release", default="", metavar="NAME", help="of the Helm chart, by kubectl"
        )
        action.add_argument("--namespace", default="", help="of the release")


def _add_limits(action: Any) -> None:
    """Add the options of limits; without them nothing is limited."""
    action.add_argument("--rpm", type=int, default=0, metavar="N", help="requests a minute")
    action.add_argument("--tpm", type=int, default=0, metavar="N", help="tokens a minute")
    action.add_argument("--concurrency", type=int, default=0, metavar="N", help="open requests")
    action.add_argument("--budget", default="", metavar="N/day|N/month", help="tokens, UTC windows")
    cost_help = "money, in the currency of the price list: 250.50/month"
    action.add_argument("--budget-cost", default="", metavar="X/day|X/month", help=cost_help)
    hard_help = "never exceed the budgets, also while Redis is away"
    action.add_argument("--hard-budget", action="store_true", help=hard_help)


def parse_budget(text: str) -> tuple[int, str]:
    """ "5000/day" -> (5000, "day"). Raises RegistryError."""
    if not text:
        return 0, ""
    amount, _, period = text.partition("/")
    is_number = amount.isascii() and amount.isdigit()
    if period not in PERIODS or not is_number or int(amount) == 0:
        raise RegistryError(f"--budget {text!r}: say N/day or N/month, N tokens")
    return int(amount), period


def parse_cost(text: str) -> tuple[int, str]:
    """ "2.5/day" -> (2500000000, "day"): billionths. Raises RegistryError."""
    if not text:
        return 0, ""
    amount, _, period = text.partition("/")
    whole, _, fraction = amount.partition(".")
    digits = whole + fraction.ljust(9, "0")
    is_number = digits.isascii() and digits.isdigit() and len(fraction) <= 9
    if period not in PERIODS or not is_number or int(digits) == 0:
        raise RegistryError(f"--budget-cost {text!r}: say X/day or X/month, X an amount of money")
    return int(digits), period


def create_key(keys: Keys, new: NewKey) -> str:
    """Make a key, record it durably and give it to a running stack; returns the key, or the id of
    an identity, which has none."""
    api_key, record = changes.create(keys.home, keys.server_secret(), new)
    keys.publish(record)
    return api_key or record.key_id


def _keys_of(arguments: argparse.Namespace) -> Keys:
    """The keys that are meant. Raises RegistryError where no stack is."""
    if arguments.release:
        return ClusterKeys(arguments.release, arguments.namespace)
    return LocalKeys(_home(is_new=getattr(arguments, "new", False)))


def _home(*, is_new: bool) -> Home:
    """The stack's folder: the named one, a new one, or the nearest. Raises RegistryError."""
    home = Home.found()
    if os.environ.get(ENV_VARIABLE):
        home = Home.of_environment()
        home.create()
    elif is_new:
        home = Home(Path(FOLDER))
        home.create()
    elif home is None:
        raise RegistryError(
            f"no stack in {Path.cwd()} or above, so a key would be of no use: go to the folder "
            "where baton up runs, or name its .baton with --home; --new makes one here"
        )
    return home


def _check_models(state: StackState | None, names: Sequence[str]) -> None:
    """Raises RegistryError for a model that the running stack does not serve."""
    served = state.models if state else []
    for name in names:
        if served and name not in served:
            near = nearest(name, served)
            hint = f"did you mean {near}?" if near else f"it serves {', '.join(served)}"
            raise RegistryError(f"--models {name!r}: the running stack does not serve it; {hint}")


def _create(arguments: argparse.Namespace) -> int:
    keys = _keys_of(arguments)
    state = keys.stack.read_state() if isinstance(keys, LocalKeys) else None
    limits = KeyLimits(**_given_limits(arguments))
    if not 0 <= arguments.priority <= key_registry.MAX_PRIORITY:
        raise RegistryError(
            f"--priority {arguments.priority}: must be 0 to {key_registry.MAX_PRIORITY}"
        )
    if not key_registry.MIN_WEIGHT <= arguments.weight <= key_registry.MAX_WEIGHT:
        raise RegistryError(
            f"--weight {arguments.weight:g}: must be {key_registry.MIN_WEIGHT} to "
            f"{key_registry.MAX_WEIGHT:g}"
        )
    models = tuple(name for name in arguments.models.split(",") if name)
    new = NewKey(
        arguments.tenant,
        limits,
        models,
        arguments.priority,
        arguments.weight,
        arguments.identity,
    )
    _check_models(state, models)
    print(create_key(keys, new), flush=True)
    if isinstance(keys, LocalKeys):
        *_, record = keys.home.read().keys.values()
        runs = "" if state else "; no stack runs there now, it counts from the next start"
        told = f"{record.key_id}, kept in {keys.stack.root}{runs}"
        print(f"{told}. The key itself is not shown again." * (not new.identity), file=sys.stderr)
    return 0


def _given_limits(arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of the options of limits. Raises RegistryError."""
    for name in ("rpm", "tpm", "concurrency"):
        if (limit := getattr(arguments, name)) < 0:
            raise RegistryError(f"--{name} {limit}: must be 0 or more; 0 = unlimited")
    amount, period = parse_budget(arguments.budget)
    cost, cost_period = parse_cost(arguments.budget_cost)
    given = {
        "requests_per_minute": arguments.rpm,
        "tokens_per_minute": arguments.tpm,
        "concurrency": arguments.concurrency,
        "budget_tokens": amount,
        "budget_period": period,
        "budget_cost": cost,
        "cost_period": cost_period,
        "hard_budget": arguments.hard_budget,
    }
    try:
        ModelLimits(**given)
    except ValueError as error:
        raise RegistryError(str(error)) from error
    return given


def _limit(arguments: argparse.Namespace) -> int:
    keys = _keys_of(arguments)
    record = _limited(keys.home, arguments, _given_limits(arguments))
    keys.publish(record)
    print(_line(record) if isinstance(record, KeyRecord) else _owner_line(record))
    return 0


def _limited(
    home: RegistryHome, arguments: argparse.Namespace, given: dict[str, Any]
) -> KeyRecord | OwnerLimits:
    """Set the limits of what the arguments name. Raises RegistryError."""

    def changed(before: KeyLimits) -> KeyLimits:
        return _changed(before, arguments.model, given)

    if arguments.key:
        return changes.update(
            home,
            arguments.key,
            lambda key: msgspec.structs.replace(key, limits=changed(key.limits)),
        )
    if arguments.organisation:
        return changes.set_limits(home, "organisation", arguments.organisation, changed)
    return changes.set_limits(home, "tenant", arguments.tenant, changed)


def _changed(before: KeyLimits, model: str, given: dict[str, Any]) -> KeyLimits:
    """Replace the limits over all models, or those of one; the others stay."""
    if not model:
        return KeyLimits(**given, by_model=before.by_model)
    others = {name: limits for name, limits in before.by_model.items() if name != model}
    of_model = ModelLimits(**given)
    by_model = others if of_model == ModelLimits() else others | {model: of_model}
    return msgspec.structs.replace(before, by_model=by_model)


def _list(arguments: argparse.Namespace) -> int:
    keys = _keys_of(arguments)
    entries = keys.home.read()
    used = last_used(keys.stack.usage) if isinstance(keys, LocalKeys) else {}
    for owner in entries.limits.values():
        print(_owner_line(owner))
    for record in entries.keys.values():
        times = [f"made={_shown_time(record.created_unix_s)}"]
        if record.key_id in used:
            times.append(f"used={_shown_time(used[record.key_id])}")
        print("  ".join([_line(record), *times]))
    if not entries.records():
        print("no keys and no limits yet; make one with: baton keys create --tenant NAME")
    return 0


def _shown_time(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%dT%H:%M}"


def last_used(archive: Path) -> dict[str, float]:
    """When the last request of each key was settled, in Unix seconds; of the latest days only."""
    used: dict[str, float] = {}
    for path in usage_log.files(archive)[-_DAYS_LOOKED_AT:] if archive.is_dir() else ():
        try:
            for line in usage_log.read_file(path):
                used[line.key_id] = line.settled_unix_ms / 1000
        except (OSError, msgspec.MsgspecError):
            continue
    return used


def _owner_line(owner: OwnerLimits) -> str:
    return "  ".join([f"{owner.level}={owner.name}", *_limits_text(owner.limits)])


def _limits_text(limits: KeyLimits) -> list[str]:
    """The limits over all models, then those of each under its name."""
    parts: list[str] = []
    for model, of_model in limits.by_models():
        at = f"{model}:" if model else ""
        numbers = {
            "rpm": of_model.requests_per_minute,
            "tpm": of_model.tokens_per_minute,
            "concurrency": of_model.concurrency,
        }
        parts += [f"{at}{name}={value}" for name, value in numbers.items() if value]
        hard = ", hard" if of_model.hard_budget else ""
        if of_model.budget_tokens:
            parts.append(f"{at}budget={of_model.budget_tokens}/{of_model.budget_period}{hard}")
        if of_model.budget_cost:
            cost = f"{of_model.budget_cost // 10**9}.{of_model.budget_cost % 10**9:09}"
            amount = cost.rstrip("0").rstrip(".")
            parts.append(f"{at}budget-cost={amount}/{of_model.cost_period}{hard}")
    return parts


def _line(record: KeyRecord) -> str:
    parts = [
        record.key_id,
        record.shown if record.shown.startswith(key_registry.IDENTITIES) else f"{record.shown}...",
        f"tenant={record.tenant}",
        *_limits_text(record.limits),
    ]
    if record.allowed_models:
        parts.append(f"models={','.join(record.allowed_models)}")
    if record.priority:
        parts.append(f"priority={record.priority}")
    if record.weight != 1:
        parts.append(f"weight={record.weight:g}")
    if record.revoked:
        parts.append("REVOKED")
    return "  ".join(parts)


def _revoke(arguments: argparse.Namespace) -> int:
    keys = _keys_of(arguments)
    keys.publish(changes.revoke(keys.home, arguments.key_id))
    print(f"revoked {arguments.key_id}: refused within 5 s")
    return 0
