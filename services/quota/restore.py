"""Restores budgets in a Redis that came back empty: the tokens that keys have spent.

The tokens are those of the current window of each key with a budget, summed from the usage archive
line by line. A repeated line is left out if the first one is among the last _MAX_REMEMBERED lines;
beyond that it counts again, so a budget is never restored with too little spent.
This runs before the keys' limits are declared, so that nothing can be charged in between; a counter
that exists already stays as it is. Leases of open requests are not restored: their settles are
debited in full.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from baton.wire import usage_log
from baton.wire.key_registry import Command, KeyRecord, tenant_root
from baton.wire.usage_log import UsageLine
from services.quota.usage_files import SeenRequests

_MAX_REMEMBERED = 262_144
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
    current = {period: window_id(period, now_unix_ms) for period in _FORMATS}
    spent = _Spent()
    for line in _lines_of_month(folder, now_unix_ms):
        period = budgets.get((line.tenant, line.key_id))
        if period and window_id(period, _charged_at(line)) == current[period]:
            spent.add(line)
    return [
        ("HSETNX", _budget_key(owner, budgets[owner], now_unix_ms), "spent", num_tokens)
        for owner, num_tokens in spent.of_key.items()
    ]


class _Spent:
    """Tokens by tenant and key. A final line replaces what a provisional one counted."""

    def __init__(self) -> None:
        self.of_key: Counter[tuple[str, str]] = Counter()
        self._seen = SeenRequests(_MAX_REMEMBERED)
        self._provisional: OrderedDict[tuple[str, str], int] = OrderedDict()

    def add(self, line: UsageLine) -> None:
        if not self._seen.is_new(line):
            return
        self._seen.add(line)
        request, owner = (line.tenant, line.request_id), (line.tenant, line.key_id)
        self.of_key[owner] += line.num_tokens - self._provisional.pop(request, 0)
        if line.provisional:
            self._provisional[request] = line.num_tokens
            if len(self._provisional) > _MAX_REMEMBERED:
                self._provisional.popitem(last=False)


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
