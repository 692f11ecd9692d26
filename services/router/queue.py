"""The queue of one model: bounded, first come first served, each waiter with its own deadline.

Streams that have begun and lost their worker go before requests of which nobody has seen anything.
Who is first in line is tried first: at once, when something changed (`notify`), and every RETRY_S
because room also comes back by time alone (leases expire, silent workers turn stale). Who needs
less than all who found no room before it is tried after them, so that one who needs much holds up
nobody else; what keeps it from waiting for ever is the attempt's business (`head_of_line.py`). Many
changes in a row cost one attempt per PACE_S, and those behind the first are looked at every
RETRY_S: a full fleet that reports busily must not keep the router busy. Knows nothing of workers.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from baton.system.clock import Clock
from baton.wire.failures import BatonError, Overloaded, Unavailable

RETRY_S = 0.05
PACE_S = 0.01
# How much too early, by the clock, a timer is taken as due: uvloop counts in whole milliseconds.
_TIMER_SLACK_S = 0.002
# When so many waiters have found no room, no further one is tried until the next turn.
MAX_IN_VAIN = 4
# The weight of the newest interval between two grants in their mean.
_SMOOTHING = 0.2
_MIN_RETRY_AFTER_S = 1.0
_MAX_RETRY_AFTER_S = 30.0

D = TypeVar("D")
T = TypeVar("T")


class WaitedTooLong(Exception):
    """The waiter's time ran out before its attempt succeeded."""


@dataclass(slots=True, eq=False)
class _Waiter(Generic[D, T]):
    demand: D
    # Errors are values here: a cancelled waiter would leave an exception unretrieved.
    outcome: "asyncio.Future[T | BatonError]"


# Waiters in the order in which they came; the values mean nothing.
_Line = dict[_Waiter[D, T], None]


class _GrantIntervals:
    """The mean time between two grants to waiting requests, newest ones weighing most."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._granted_at: float | None = None
        self.mean_s = 0.0

    def note(self) -> None:
        """Take a grant into the mean."""
        now = self._clock.now()
        if self._granted_at is not None:
            self.mean_s += _SMOOTHING * (now - self._granted_at - self.mean_s)
        self._granted_at = now

    def pause(self) -> None:
        """Leave out the interval from now to the next grant: no request waits meanwhile."""
        self._granted_at = None


class _RetryTimer:
    """One timer on the running event loop, which calls `retry` when it is due."""

    def __init__(self, clock: Clock, retry: Callable[[], None]) -> None:
        self._clock = clock
        self._retry = retry
        self._handle: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def set(self, delay_s: float) -> None:
        """Be due in `delay_s`, or earlier if it is set to an earlier time already."""
        due_at = self._clock.now() + delay_s
        if self._handle is not None and self._due_at > due_at:
            self.clear()
        if self._handle is None:
            self._due_at = due_at
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        left_s = self._due_at - self._clock.now()
        if left_s > _TIMER_SLACK_S:
            self.set(left_s)
        else:
            self._retry()


class RequestQueue(Generic[D, T]):
    """At most `max_queued` waiters, and as many whose streams have begun.

    `attempt(demand, is_first)` returns a waiter's result, or None to let it wait on; it raises
    BatonError to refuse. `covers(one, other)` is true when `other` finds no room where `one` finds
    none.
    """

    def __init__(
        self,
        max_queued: int,
        attempt: Callable[[D, bool], T | None],
        covers: Callable[[D, D], bool],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._max_queued = max_queued
        self._attempt = attempt
        self._covers = covers
        self._begun: _Line[D, T] = {}
        self._new: _Line[D, T] = {}
        self._timer = _RetryTimer(clock, self.pump)
        self._failed_at = self._looked_behind_at = float("-inf")
        self._intervals = _GrantIntervals(clock)

    def __len__(self) -> int:
        return len(self._begun) + len(self._new)

    def predicted_wait_s(self) -> float:
        """The wait of a new request, from the intervals between the latest grants."""
        return len(self) * self._intervals.mean_s

    def retry_after_s(self) -> float:
        """Seconds after which a refused caller may try again."""
        return min(max(self.predicted_wait_s(), _MIN_RETRY_AFTER_S), _MAX_RETRY_AFTER_S)

    async def wait(self, demand: D, timeout_s: float, *, has_begun: bool = False) -> T:
        """Wait for the result of `attempt`; leaves the queue when the caller is cancelled.

        Raises what `attempt` raises, Overloaded when the queue is full, WaitedTooLong after
        `timeout_s`.
        """
        line = self._begun if has_begun else self._new
        is_first = not self._begun and not line
        if is_first or not self._is_covered(demand, (each for _, each in self._waiters())):
            result = self._attempt(demand, is_first)
            if result is not None:
                return result
        if len(line) >= self._max_queued:
            raise Overloaded(
                f"{self._max_queued} requests wait for this model already",
                retry_after_s=self.retry_after_s(),
            )
        waiter = self._enter(line, demand)
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await waiter.outcome
        except TimeoutError:
            raise WaitedTooLong from None
        finally:
            self._leave(line, waiter)
        if isinstance(outcome, BatonError):
            raise outcome
        return outcome

    def notify(self) -> None:
        """Try the waiters after a change, now or when PACE_S allows."""
        if not len(self):
            return
        due_in_s = self._failed_at + PACE_S - self._clock.now()
        if due_in_s <= 0:
            self.pump()
        else:
            self._timer.set(due_in_s)

    def pump(self) -> None:
        """Try the waiters in order; behind one that has to wait, those that it does not cover."""
        now = self._clock.now()
        looks_behind = now - self._looked_behind_at >= RETRY_S - _TIMER_SLACK_S
        if looks_behind:
            self._looked_behind_at = now
        in_vain: list[_Waiter[D, T]] = []
        for line, waiter in self._waiters():
            if waiter.outcome.done():  # cancelled, and its task has not run since
                del line[waiter]
            elif self._is_covered(waiter.demand, in_vain):
                continue
            elif (outcome := self._outcome(waiter, not in_vain)) is not None:
                del line[waiter]
                waiter.outcome.set_result(outcome)
            else:
                self._failed_at = now
                in_vain.append(waiter)
                if not looks_behind or len(in_vain) == MAX_IN_VAIN:
                    break
        self._set_timer()

    def refuse_all(self, message: str) -> None:
        """Refuse all waiters; their gateways try another router."""
        for line, waiter in self._waiters():
            del line[waiter]
            if not waiter.outcome.done():
                waiter.outcome.set_result(Unavailable(message, retry_after_s=_MIN_RETRY_AFTER_S))
        self._set_timer()

    def _waiters(self) -> Iterator[tuple[_Line[D, T], _Waiter[D, T]]]:
        """The waiters in order, with their lines, which may change meanwhile."""
        for line in (self._begun, self._new):
            for waiter in list(line):
                yield line, waiter

    def _is_covered(self, demand: D, others: Iterable[_Waiter[D, T]]) -> bool:
        return any(self._covers(other.demand, demand) for other in others)

    def _outcome(self, waiter: _Waiter[D, T], is_first: bool) -> T | BatonError | None:
        """The waiter's result or error, or None when it has to wait on."""
        try:
            result = self._attempt(waiter.demand, is_first)
        except BatonError as error:
            return error
        if result is not None:
            self._intervals.note()
        return result

    def _enter(self, line: _Line[D, T], demand: D) -> _Waiter[D, T]:
        waiter: _Waiter[D, T] = _Waiter(demand, asyncio.get_running_loop().create_future())
        line[waiter] = None
        self._set_timer()
        return waiter

    def _leave(self, line: _Line[D, T], waiter: _Waiter[D, T]) -> None:
        """Take out a waiter that gives up; it may have stood in the way of those behind it."""
        if waiter in line:
            del line[waiter]
            self.pump()

    def _set_timer(self) -> None:
        """Try again in RETRY_S at the latest, while there is a waiter."""
        if len(self):
            self._timer.set(RETRY_S)
        else:
            self._intervals.pause()
            self._timer.clear()
