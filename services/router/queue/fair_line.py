"""The order of the requests that wait: by priority, then by what their tenants have received.

    larger priorities first -> of one priority, the tenant that has had least -> its oldest request

So a tenant's backlog is its own: a request waits behind those of its own tenant and about as many
of each other one. Larger priorities cannot starve smaller ones: after MAX_PASSED grants over the
head of a request that has waited for AGE_S, the one of them that has waited longest goes first.
Knows neither workers nor demands (decision 0035).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from baton.system.clock import Clock
from services.router.queue.grant_pace import GrantPace

AGE_S = 1.0
MAX_PASSED = 8
MAX_IDLE_TENANTS = 4096
# Whether a tenant is quiet shows in the last one or two windows.
WINDOW_S = 30.0
# Shares are looked at that often.
LOOK_S = 1.0
# A tenant is quiet that had less than this share of the mean of all tenants.
QUIET_SHARE = 0.5
# With more requests that wait it has a backlog, too.
MAX_WAITING = 2


class Turn(NamedTuple):
    """The claim of a request: its tenant with its weight, its priority, and the bytes it keeps."""

    tenant: str = ""
    priority: int = 0
    weight: float = 1.0
    num_bytes: int = 0


# A request of no tenant, at the least priority.
ANYBODY = Turn()


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in a line; `number` counts arrivals."""

    turn: Turn
    number: int
    since: float


W = TypeVar("W", bound=Waiting)


@dataclass(slots=True)
class Held:
    """The requests of one tenant that wait, over all priorities."""

    num_requests: int = 0
    num_bytes: int = 0


class QuietTenants:
    """The tenants of one priority that take much less than others: a busy fleet keeps some room
    for them.

    The order of the line alone lets a tenant that comes back wait until some answer ends. So a
    tenant with a large share leaves a few batch slots free (`pick/kept_room.py`), as long as there
    are tenants with a small one. Shares are of the service of the last two windows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._served_s: dict[str, float] = {}
        self._served_before_s: dict[str, float] = {}
        self._window_since = self._looked_at = clock.now()
        self._others: frozenset[str] = frozenset()
        self._is_any = False

    def charge(self, tenant: str, seconds: float) -> None:
        """Count the service of a request, already divided by its tenant's weight."""
        self._look()
        self._served_s[tenant] = self._served_s.get(tenant, 0.0) + seconds

    def is_any(self) -> bool:
        """Return whether a tenant that was served lately is quiet."""
        self._look()
        return self._is_any

    @property
    def has_loud(self) -> bool:
        """Some tenant had much lately."""
        return bool(self._others)

    def is_quiet(self, tenant: str) -> bool:
        """Return whether this tenant had little or nothing lately."""
        self._look()
        return tenant not in self._others

    def _look(self) -> None:
        now = self._clock.now()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if now - self._window_since >= 2 * WINDOW_S:
            self._window_since, self._served_before_s, self._served_s = now, {}, {}
        served = dict(self._served_before_s)
        for tenant, seconds in self._served_s.items():
            served[tenant] = served.get(tenant, 0.0) + seconds
        limit_s = QUIET_SHARE * sum(served.values()) / max(1, len(served))
        self._others = frozenset(each for each, had_s in served.items() if had_s >= limit_s)
        self._is_any = len(self._others) < len(served)
        if now - self._window_since >= WINDOW_S:
            self._window_since = now
            self._served_before_s, self._served_s = self._served_s, {}


class FairShares:
    """The service that the tenants of one priority have received: the one with least goes next.

    A virtual counter for each tenant ("Fairness in Serving Large Language Models", OSDI 2024), in
    seconds of the engines, divided by the tenant's weight. Of two tenants for which requests wait
    all the time, the counters differ by one request at most. A tenant that comes back is lifted to
    the least of those that wait: it has no claim on the time in which it asked for nothing, and
    what it had while nobody waited is not held against it. `join` and `leave` say for which of the
    tenants requests wait.
    """

    def __init__(self) -> None:
        self._served_s: dict[str, float] = {}
        self._waiting: set[str] = set()
        # The least counter of the tenants that wait, as it was when the last of them was served.
        self._floor_s = 0.0

    def served_s(self, tenant: str) -> float:
        """The tenant's counter."""
        return max(self._served_s.get(tenant, 0.0), self._floor_s if self._is_idle(tenant) else 0.0)

    def join(self, tenant: str) -> None:
        """Note that requests of this tenant wait from now on."""
        self._lift(tenant)
        self._waiting.add(tenant)

    def leave(self, tenant: str) -> None:
        """Note that no request of this tenant waits any more."""
        self._waiting.discard(tenant)
        if len(self._served_s) > MAX_IDLE_TENANTS + len(self._waiting):
            self._forget()

    def charge(self, tenant: str, seconds: float) -> None:
        """Count the service of a request, already divided by its tenant's weight."""
        self._lift(tenant)
        if not self._waiting:
            self._floor_s = max(self._floor_s, self._served_s[tenant])
        self._served_s[tenant] += seconds
        self._floor_s = max(self._floor_s, self._least_s())

    def _lift(self, tenant: str) -> None:
        if self._is_idle(tenant):
            least_s = self._least_s()
            self._served_s[tenant] = max(self._served_s.get(tenant, 0.0), least_s)

    def _least_s(self) -> float:
        """The counter to which a tenant is lifted that comes now."""
        return min((self._served_s[tenant] for tenant in self._waiting), default=self._floor_s)

    def _is_idle(self, tenant: str) -> bool:
        return tenant not in self._waiting

    def _forget(self) -> None:
        """Forget the tenants that would be lifted anyway."""
        least_s = self._least_s()
        self._served_s = {
            tenant: served_s
            for tenant, served_s in self._served_s.items()
            if tenant in self._waiting or served_s > least_s
        }


@dataclass(slots=True)
class _Band(Generic[W]):
    """The requests of one priority, by tenant in the order of their arrival."""

    pace: GrantPace
    quiet: QuietTenants
    shares: FairShares = field(default_factory=FairShares)
    lines: dict[str, dict[W, None]] = field(default_factory=dict)

    def in_order(self) -> Iterator[W]:
        """The requests in order; those granted meanwhile count for what comes next.

        Of two tenants that have had as much, the one with the shorter backlog goes first: it has
        come back just now.
        """
        backlogs = [list(reversed(line)) for line in self.lines.values()]
        heap = [self._rank(backlog) for backlog in backlogs]
        heapq.heapify(heap)
        while heap:
            backlog = heapq.heappop(heap)[-1]
            yield backlog.pop()
            if backlog:
                heapq.heappush(heap, self._rank(backlog))

    def _rank(self, backlog: list[W]) -> tuple[float, int, int, list[W]]:
        """The place of a tenant's next request, which is the last one of `backlog`."""
        oldest = backlog[-1]
        return self.shares.served_s(oldest.turn.tenant), len(backlog), oldest.number, backlog

    def num_ahead(self, turn: Turn) -> float:
        """About how many of these requests go before a new one: as many of each tenant as of its
        own, by weight."""
        num_own = len(self.lines.get(turn.tenant, ()))
        others = (
            min(len(line), (num_own + 1) * next(iter(line)).turn.weight / turn.weight)
            for tenant, line in self.lines.items()
            if tenant != turn.tenant
        )
        return num_own + sum(others)


class FairLine(Generic[W]):
    """The requests that wait for one model, and the pace at which they go."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pace = GrantPace(clock)
        self._bands: dict[int, _Band[W]] = {}
        self._held: dict[str, Held] = {}
        self._num = 0
        self._num_passed = 0

    def __len__(self) -> int:
        return self._num

    @property
    def num_tenants(self) -> int:
        """The tenants of which requests wait."""
        return len(self._held)

    def held(self, tenant: str) -> Held:
        """The requests of a tenant that wait."""
        return self._held.get(tenant, Held())

    def claims(self) -> tuple[int, dict[str, float]]:
        """The largest priority for which requests wait, and the weights of its tenants."""
        waiting = [priority for priority, band in self._bands.items() if band.lines]
        if not waiting:
            return 0, {}
        lines = self._bands[max(waiting)].lines
        weights = {tenant: next(iter(line)).turn.weight for tenant, line in lines.items()}
        return max(waiting), weights

    def charge(self, turn: Turn, engine_s: float) -> None:
        """Count the service of a request, whether it waited or not."""
        band = self._band(turn.priority)
        band.shares.charge(turn.tenant, engine_s / turn.weight)
        band.quiet.charge(turn.tenant, engine_s / turn.weight)

    def goes_first(self, turn: Turn) -> bool:
        """Return whether workers compute this tenant's prompts before others: it is quiet beside
        tenants that are not."""
        return self._is_quiet(turn) and self._band(turn.priority).quiet.has_loud

    def must_leave_room(self, turn: Turn) -> bool:
        """Return whether requests of this tenant must leave room for quiet ones of as large a
        priority or a larger one."""
        if self._is_quiet(turn):
            return False
        return any(
            priority >= turn.priority and band.quiet.is_any()
            for priority, band in self._bands.items()
        )

    def predicted_wait_s(self, turn: Turn, num_begun: int = 0) -> float:
        """The wait of a new request behind `num_begun` others that go before all."""
        band = self._band(turn.priority)
        num_ahead = num_begun + band.num_ahead(turn)
        if band.pace.interval_s:
            return num_ahead * band.pace.interval_s
        larger = (b for priority, b in self._bands.items() if priority > turn.priority)
        num_ahead += sum(len(line) for each in larger for line in each.lines.values())
        return num_ahead * self._pace.interval_s

    def enter(self, waiter: W) -> None:
        """Let a request wait, behind those of its tenant."""
        turn = waiter.turn
        band = self._band(turn.priority)
        if turn.tenant not in band.lines:
            band.lines[turn.tenant] = {}
            band.shares.join(turn.tenant)
        band.lines[turn.tenant][waiter] = None
        held = self._held.setdefault(turn.tenant, Held())
        held.num_requests += 1
        held.num_bytes += turn.num_bytes
        self._num += 1
        band.pace.begin()
        self._pace.begin()

    def leave(self, waiter: W) -> bool:
        """Take a request out; returns whether it was there."""
        turn = waiter.turn
        band = self._band(turn.priority)
        line = band.lines.get(turn.tenant, {})
        if waiter not in line:
            return False
        del line[waiter]
        if not line:
            del band.lines[turn.tenant]
            band.shares.leave(turn.tenant)
        held = self._held[turn.tenant]
        held.num_requests -= 1
        held.num_bytes -= turn.num_bytes
        if not held.num_requests:
            del self._held[turn.tenant]
        self._num -= 1
        if not band.lines:
            band.pace.pause()
        if not self._num:
            self._pace.pause()
        return True

    def granted(self, waiter: W) -> None:
        """Take a request out that got its workers."""
        band = self._band(waiter.turn.priority)
        band.pace.note()
        self._pace.note()
        self.leave(waiter)
        has_passed = any(each.turn.priority < waiter.turn.priority for each in self._aged())
        self._num_passed = self._num_passed + 1 if has_passed else 0

    def in_order(self) -> Iterator[W]:
        """The requests in order; those granted meanwhile count for what comes next."""
        owed = None
        if self._num_passed >= MAX_PASSED:
            owed = min(self._aged(), key=lambda each: each.number, default=None)
        if owed is not None:
            yield owed
        for priority in sorted(self._bands, reverse=True):
            for waiter in self._bands[priority].in_order():
                if waiter is not owed:
                    yield waiter

    def _is_quiet(self, turn: Turn) -> bool:
        has_backlog = self.held(turn.tenant).num_requests > MAX_WAITING
        return not has_backlog and self._band(turn.priority).quiet.is_quiet(turn.tenant)

    def _aged(self) -> Iterator[W]:
        """The oldest request of each tenant below the largest priority that has waited long."""
        priorities = [priority for priority, band in self._bands.items() if band.lines]
        for priority in sorted(priorities)[:-1]:
            for line in self._bands[priority].lines.values():
                oldest = next(iter(line))
                if self._clock.now() - oldest.since >= AGE_S:
                    yield oldest

    def _band(self, priority: int) -> _Band[W]:
        if (band := self._bands.get(priority)) is None:
            band = self._bands[priority] = _Band(GrantPace(self._clock), QuietTenants(self._clock))
        return band
