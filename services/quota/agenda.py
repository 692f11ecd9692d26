"""The agenda: which tenants hold leases, and when to look whether one of them expired.

One sorted set in Redis, which all replicas share, so a tenant without leases costs nothing. A
tenant enters it within a round of its first lease; the one replica that takes it off looks, and
puts it back with the expiry of its next lease. A replica that dies in between forgets what it had
taken: `add_all`, at each start and now and then, puts every tenant on the agenda for one look.
"""

from collections.abc import Iterable

from baton.wire.key_registry import TENANTS_KEY
from services.quota.store import Store

AGENDA_KEY = "baton:agenda"

_TENANTS_PER_CALL = 64


class Agenda:
    """The tenants to look at. `every_script` are the arguments that each script begins with."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Tenants that may hold leases since; the next `take` enters them.
        self.new: set[str] = set()

    async def take(self, every_script: Iterable[int]) -> list[str]:
        """Take some of the tenants off whose time has come; [] = none. Raises Unavailable."""
        new, self.new = self.new, set()
        try:
            due = await self._store.run_script(
                "agenda", AGENDA_KEY, (*every_script, _TENANTS_PER_CALL, *sorted(new))
            )
        except BaseException:
            self.new |= new
            raise
        return [name.decode() for name in due]

    async def put_back(self, next_ms: dict[str, int]) -> None:
        """Enter tenants with the time of their next look. Raises Unavailable."""
        await self._store.execute_all(
            ("ZADD", AGENDA_KEY, "NX", at_ms, tenant) for tenant, at_ms in next_ms.items()
        )

    async def add_all(self) -> list[str]:
        """Enter every tenant for a look at once; returns them. Raises Unavailable."""
        names = [name.decode() for name in await self._store.execute("SMEMBERS", TENANTS_KEY)]
        await self._store.execute_all(("ZADD", AGENDA_KEY, 0, name) for name in names)
        return names
