"""The usage records that this replica acknowledged last, settled again when the store lost some.

A Redis that comes back empty, or as an older copy, lacks the last records, and those that were not
archived yet would be lost with it. Settling is idempotent, so it does not matter which of them it
has. It may also hold leases again that had ended, of tenants that nobody looks at: all are looked
at. What was spent in the last KEPT_S before Redis came back empty may be counted twice: by this
settle and by the archive.
"""

import contextlib
from collections import deque
from collections.abc import Callable

from baton.runtime import logs
from baton.wire.v1 import quota_pb2
from services.quota.ledger import Ledger
from services.quota.store import Store, StoreRefused

# The archiver needs a second at most.
KEPT_S = 5.0
MAX_RECORDS = 50_000
_log = logs.get("quota.settles")


class RecentSettles:
    """Settles through a ledger, and remembers. `follow` is called about once in a second."""

    def __init__(self, ledger: Ledger, store: Store, now: Callable[[], float]) -> None:
        self._ledger = ledger
        self._store = store
        self._now = now
        self._records: deque[tuple[float, quota_pb2.UsageRecord]] = deque(maxlen=MAX_RECORDS)
        self._server = ""

    async def settle(self, request: quota_pb2.SettleRequest) -> quota_pb2.SettleResponse:
        """Settle as the ledger does."""
        response = await self._ledger.settle(request)
        self._records.append((self._now(), request.usage))
        return response

    async def follow(self) -> None:
        """Settle the last records again if another server answers. Raises Unavailable."""
        server = await self._store.identity()
        if self._server and server != self._server:
            await self._repeat()
        self._server = server
        while self._records and self._records[0][0] < self._now() - KEPT_S:
            self._records.popleft()

    async def _repeat(self) -> None:
        records = [record for _, record in self._records]
        _log.warning("store_changed", num_records=len(records))
        await self._ledger.look_at_all()
        for record in records:
            # One tenant's corrupt data does not stop the others.
            with contextlib.suppress(StoreRefused):
                await self._ledger.settle(quota_pb2.SettleRequest(usage=record))
