"""Restores budgets in a Redis that came back empty: the tokens that keys have spent.

The tokens are those of the current window of each key with a budget, summed from the usage archive
line by line. A repeated line is left out if the first one is among the last _MAX_REMEMBERED lines;
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from baton.runtime import logs
from baton.wire import usage_log
from baton.wire.key_limits import tenant_root
from baton.wire.key_registry import Entries, KeyRecord
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
    """The tokens that a key spent in a budget window."""

    tenant: str
    key_id: str
    window: str
    num_tokens: int


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
            spent_tokens, list(entries.keys.values()), self._folder, now_ms, before_ms
        ):
            arguments = (spent.key_id, spent.window, self._own_id, spent.num_tokens, 0)
            root = tenant_root(spent.tenant)
            await self._store.run_script("restore", root, (0, *_NO_TERMS, *arguments))
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


def spent_tokens(
    records: Iterable[KeyRecord], folder: Path, now_unix_ms: int, before_unix_ms: int
) -> list[Spent]:
    """Sum the tokens of the keys with a budget in the window of now, as far as they were settled
    before `before_unix_ms`. Reads this month's files: blocks on the disk.
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
        if (
            period
            and line.settled_unix_ms < before_unix_ms
            and window_id(period, _charged_at(line)) == current[period]
        ):
            spent.add(line)
    return [
        Spent(*owner, current[budgets[owner]], num_tokens)
        for owner, num_tokens in spent.of_key.items()
    ]


def _parts(epoch: bytes) -> str:
    return f"baton:archives:{epoch.decode()}"


class _Spent:
    """Tokens by tenant and key. A final line replaces what a provisional one counted."""

    def __init__(self) -> None:
        self.of_key: Counter[tuple[str, str]] = Counter()
        self._seen = SeenRequests(_MAX_REMEMBERED)
        self._provisional: OrderedDict[tuple[str, str], int] = OrderedDict()

    def add(self, line: UsageLine) -> None:
        if not self._seen.admit(line):
            return
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
