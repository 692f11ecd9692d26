"""Restores budgets in a Redis that came back empty: the tokens that keys have spent.

The tokens are those of the current window of each key with a budget, summed from the usage archive.
This runs before the keys' limits are declared, so that nothing can be charged in between; a counter
that exists already stays as it is. Leases of open requests are not restored: their settles are
debited in full.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from baton.wire import usage_log
from baton.wire.key_registry import Command, KeyRecord, tenant_root
from baton.wire.usage_log import UsageLine

_FORMATS = {"day": "d%Y%m%d", "month": "m%Y%m"}


def window_id(period: str, unix_ms: int) -> str:
    """Return the id of the UTC budget window, as lua/accounts.lua names it."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime(_FORMATS[period])


def spent_commands(records: Iterable[KeyRecord], folder: Path, now_unix_ms: int) -> list[Command]:
    """Return the commands that restore the spent tokens of keys with a budget.

    Reads this month's files: blocks on the disk.
    """
    budgets = {
        (record.tenant, record.key_id): record.limits.budget_period
        for record in records
        if record.limits.budget_period
    }
    if not budgets:
        return []
    spent: Counter[tuple[str, str]] = Counter()
    for line in usage_log.final_lines(_lines_of_month(folder, now_unix_ms)):
        period = budgets.get((line.tenant, line.key_id))
        if period and window_id(period, _charged_at(line)) == window_id(period, now_unix_ms):
            spent[line.tenant, line.key_id] += line.num_tokens
    return [
        ("HSETNX", _budget_key(owner, budgets[owner], now_unix_ms), "spent", num_tokens)
        for owner, num_tokens in spent.items()
    ]


def _charged_at(line: UsageLine) -> int:
    """The time of the reservation, in whose window a budget is charged."""
    return line.started_unix_ms or line.settled_unix_ms


def _lines_of_month(folder: Path, now_unix_ms: int) -> Iterable[UsageLine]:
    # A request is settled after it began, so one of this month is in no file of an earlier month.
    month = datetime.fromtimestamp(now_unix_ms / 1000, UTC).strftime("usage-%Y-%m-")
    for path in usage_log.files(folder):
        if path.name.startswith(month):
            yield from usage_log.read_file(path)


def _budget_key(owner: tuple[str, str], period: str, now_unix_ms: int) -> str:
    tenant, key_id = owner
    return f"{tenant_root(tenant)}:budget:{key_id}:{window_id(period, now_unix_ms)}"
