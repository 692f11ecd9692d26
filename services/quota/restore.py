"""Restores budgets in a Redis that came back empty: the tokens and the money that keys, tenants and
organisations have spent, over all models and over single ones.

They are those of the current window of each budget, summed from the usage archive line by line. A
repeated line is left out if the first one is among the last _MAX_REMEMBERED lines;
beyond that it counts again, so a budget is never restored with too little spent.

Each replica has an archive of its own and adds its part, once for each epoch. An epoch begins when
a replica finds Redis empty, before anything is charged; records settled later are charged already.
Until the parts of all archives are there, keys with a hard budget are refused. Leases of open
requests are not restored: their settles are debited in full.
"""

import asyncio
import contextlib
import os
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from baton.runtime import logs
from baton.wire import usage_log
from baton.wire.key_limits import (
    WHOLE,
    KeyLimits,
    organisation_of,
    organisation_root,
    tenant_root,
)
from baton.wire.key_registry import Entries
from baton.wire.usage_log import UsageLine
from services.quota.store import Store
from services.quota.usage_files import SeenRequests

EPOCH_KEY = "baton:epoch"

_ARCHIVE_ID_FILE = "archive-id"
_MAX_REMEMBERED = 131_072
_DAY_MS = 86_400_000
_FORMATS = {"day": "d%Y%m%d", "month": "m%Y%m"}
# The terms of leases, with which each script begins, and which none of these uses.
_NO_TERMS = (1, 1)
_log = logs.get("quota.restore")


@dataclass(frozen=True, slots=True)
class Spent:
    """What the limits called `name` below `root` spent in a budget window."""

    root: str
    name: str
    window: str
    num_tokens: int = 0
    cost: int = 0


class ArchivedBudgets:
    """This replica's part of the spent budgets. `num_archives` is how many parts there are.

    `clock_ms` replaces the store's time in tests; 0 = the store's time.
    """

    def __init__(
        self, store: Store, folder: Path, num_archives: int, clock_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._folder = folder
        self._num_archives = num_archives
        self._clock_ms = clock_ms
        self._own_id = ""

    async def counted(self) -> tuple[bool, bool]:
        """Returns whether this archive's part is in Redis, and whether all parts are."""
        epoch = await self._store.execute("GET", EPOCH_KEY)
        if epoch is None:
            return False, False
        own = self._own_id and await self._store.execute("SISMEMBER", _parts(epoch), self._own_id)
        num_parts = await self._store.execute("SCARD", _parts(epoch))
        return bool(own), num_parts >= self._num_archives

    async def count_own(self, entries: Entries) -> None:
        """Add this archive's part, unless that was done in this epoch. Raises Unavailable.

        An archive that cannot be read is logged; its part stays away, so hard budgets wait.
        """
        own, _ = await self.counted()
        if own:
            return
        try:
            await self._count_own(entries)
        except (OSError, msgspec.MsgspecError) as error:
            _log.error("archive_unreadable", error=str(error))

    async def _count_own(self, entries: Entries) -> None:
        now_ms = await self._store.run_script("now", EPOCH_KEY, (self._clock_ms(), *_NO_TERMS))
        begun = f"{now_ms}-{secrets.token_hex(8)}"
        await self._store.execute("SET", EPOCH_KEY, begun, "NX")
        # Under the epoch's name: if Redis is lost again before the end, nothing counts as done.
        epoch = await self._store.execute("GET", EPOCH_KEY)
        if epoch is None:
            return  # lost again; the next look begins anew
        before_ms = int(epoch.partition(b"-")[0])
        self._own_id = await asyncio.to_thread(archive_id, self._folder)
        if await self._store.execute("SISMEMBER", _parts(epoch), self._own_id):
            return  # in an earlier life
        for spent in await asyncio.to_thread(
            spent_of_budgets, entries, self._folder, now_ms, before_ms
        ):
            arguments = (spent.name, spent.window, self._own_id, spent.num_tokens, spent.cost)
            await self._store.run_script("restore", spent.root, (0, *_NO_TERMS, *arguments))
        await self._store.execute("SADD", _parts(epoch), self._own_id)


def archive_id(folder: Path) -> str:
    """The name of an archive: made once, kept in its folder."""
    path = folder / _ARCHIVE_ID_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        name = secrets.token_hex(8)
        draft = path.with_name(f".{path.name}.{name}")
        draft.write_text(name)
        # Of two replicas that share the folder, one makes the name.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text()


def window_id(period: str, unix_ms: int) -> str:
    """Return the id of the UTC budget window, as lua/accounts.lua names it."""
    return _window_of_day(period, unix_ms // _DAY_MS)


@lru_cache(maxsize=128)
def _window_of_day(period: str, days: int) -> str:
    return datetime.fromtimestamp(days * _DAY_MS / 1000, UTC).strftime(_FORMATS[period])


def spent_of_budgets(
    entries: Entries, folder: Path, now_unix_ms: int, before_unix_ms: int
) -> list[Spent]:
    """Sum what was spent of each budget in the window of now, as far as it was settled before
    `before_unix_ms`. Reads this month's files: blocks on the disk.
    """
    budgets = _Budgets(entries)
    if not budgets:
        return []
    current = {period: window_id(period, now_unix_ms) for period in _FORMATS}
    spent = _Spent()
    for line in _lines_of_month(folder, now_unix_ms):
        if line.settled_unix_ms >= before_unix_ms:
            continue
        charged_ms = _charged_at(line)
        spent.add(
            line,
            [
                budget
                for budget in budgets.of_line(line)
                if window_id(budget.period, charged_ms) == current[budget.period]
            ],
        )
    return spent.of_windows(current)


def _parts(epoch: bytes) -> str:
    return f"baton:archives:{epoch.decode()}"


class _Budget(NamedTuple):
    """A budget of tokens, or of money with `is_cost`."""

    root: str
    name: str
    model: str
    period: str
    is_cost: bool


class _Budgets:
    """All budgets of a registry, and those that each usage line is charged to."""

    def __init__(self, entries: Entries) -> None:
        self._budgets: dict[tuple[str, str], list[_Budget]] = {}
        self._of_caller: dict[tuple[str, str, str], list[_Budget]] = {}
        for record in entries.keys.values():
            self._take(tenant_root(record.tenant), record.key_id, record.limits)
        for owner in entries.limits.values():
            self._take(owner.root, WHOLE, owner.limits)

    def __bool__(self) -> bool:
        return bool(self._budgets)

    def of_line(self, line: UsageLine) -> list[_Budget]:
        caller = (line.tenant, line.key_id, line.model)
        if caller not in self._of_caller:
            self._of_caller[caller] = [
                budget
                for place in _places(line)
                for budget in self._budgets.get(place, ())
                if budget.model in ("", line.model)
            ]
        return self._of_caller[caller]

    def _take(self, root: str, name: str, limits: KeyLimits) -> None:
        budgets = [
            _Budget(root, name, model, period, is_cost)
            for model, of_model in limits.by_models()
            for period, is_cost in ((of_model.budget_period, False), (of_model.cost_period, True))
            if period
        ]
        if budgets:
            self._budgets[root, name] = budgets


def _places(line: UsageLine) -> Iterator[tuple[str, str]]:
    """The roots and names of the limits of a line's key, tenant and organisation."""
    yield tenant_root(line.tenant), line.key_id
    yield tenant_root(line.tenant), WHOLE
    if organisation := organisation_of(line.tenant):
        yield organisation_root(organisation), WHOLE


class _Spent:
    """Amounts by budget. A final line replaces what a provisional one counted."""

    def __init__(self) -> None:
        self._amounts: Counter[_Budget] = Counter()
        self._seen = SeenRequests(_MAX_REMEMBERED)
        self._provisional: OrderedDict[tuple[str, str], UsageLine] = OrderedDict()

    def add(self, line: UsageLine, budgets: list[_Budget]) -> None:
        if not budgets or not self._seen.admit(line):
            return
        request = (line.tenant, line.request_id)
        replaced = self._provisional.pop(request, None)
        for budget in budgets:
            self._amounts[budget] += _amount(budget, line) - _amount(budget, replaced)
        if line.provisional:
            self._provisional[request] = line
            if len(self._provisional) > _MAX_REMEMBERED:
                self._provisional.popitem(last=False)

    def of_windows(self, current: dict[str, str]) -> list[Spent]:
        """The sums; both kinds of budgets of one window in one entry."""
        sums: dict[tuple[str, str, str], Spent] = {}
        for budget, amount in self._amounts.items():
            window = current[budget.period] + (f"@{budget.model}" if budget.model else "")
            place = (budget.root, budget.name, window)
            spent = sums.get(place, Spent(*place))
            if budget.is_cost:
                sums[place] = replace(spent, cost=amount)
            else:
                sums[place] = replace(spent, num_tokens=amount)
        return list(sums.values())


def _amount(budget: _Budget, line: UsageLine | None) -> int:
    if line is None:
        return 0
    return line.cost if budget.is_cost else line.num_tokens


def _charged_at(line: UsageLine) -> int:
    """The time of the reservation, in whose window a budget is charged."""
    return line.started_unix_ms or line.settled_unix_ms


def _lines_of_month(folder: Path, now_unix_ms: int) -> Iterable[UsageLine]:
    # A request is settled after it began, so one of this month is in no file of an earlier month.
    month = datetime.fromtimestamp(now_unix_ms / 1000, UTC).strftime("usage-%Y-%m-")
    for path in usage_log.files(folder):
        if path.name.startswith(month):
            yield from usage_log.read_file(path)
