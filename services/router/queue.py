"""The queue of one model: bounded, first come first served, each waiter with its own deadline.

Streams that have begun and lost their worker go before requests of which nobody has seen anything.
Who is first in line is tried first: at once, when something changed (`notify`), and every RETRY_S
because room also comes back by time alone (leases expire, silent workers turn stale). Who needs
less than all who found no room before it is tried after them, so that one who needs much holds up
nobody else; what keeps it from waiting for ever is the attempt's business (`kept.py`). Many changes
in a row cost one attempt per PACE_S, and those behind the first are looked at every RETRY_S: a full
fleet that reports busily must not keep the router busy. Knows nothing of workers.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from baton.wire.failures import BatonError, Overloaded, Unavailable

RETRY_S = 0.05
PACE_S = 0.01
# Waiters who find no room in one look; then nobody behind them is tried.
MAX_IN_VAIN = 4
# How much one interval between two grants moves their mean.
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
    # Carries errors as values: nobody may be left to retrieve an exception.
    outcome: "asyncio.Future[T | BatonError]"


class RequestQueue(Generic[D, T]):
    """At most `max_queued` waiters, and as many whose streams have begun.

    `attempt(demand, is_first)` gives what a waiter gets, or None to go on waiting; it raises
    BatonError to refuse. `covers(one, other)`: where `one` finds no room, `other` finds none.
    """

    def __init__(
        self,
        max_queued: int,
        attempt: Callable[[D, bool], T | None],
        covers: Callable[[D, D], bool],
    ) -> None:
        self._max_queued = max_queued
        self._attempt = attempt
        self._covers = covers
        self._begun: dict[int, _Waiter[D, T]] = {}
        self._new: dict[int, _Waiter[D, T]] = {}
        self._next_key = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._failed_at = self._looked_behind_at = float("-inf")
        self._granted_at: float | None = None
        self._mean_grant_s = 0.0

    def __len__(self) -> int:
        return len(self._begun) + len(self._new)

    def predicted_wait_s(self) -> float:
        """For a new waiter, from the intervals between the latest grants to queued ones."""
        return len(self) * self._mean_grant_s

    def retry_after_s(self) -> float:
        """When a refused caller may try again."""
        return min(max(self.predicted_wait_s(), _MIN_RETRY_AFTER_S), _MAX_RETRY_AFTER_S)

    async def wait(self, demand: D, timeout_s: float, *, has_begun: bool = False) -> T:
        """What `attempt` gives for it; leaves the queue when the caller is cancelled.

        Raises what `attempt` raises, Overloaded when the queue is full, WaitedTooLong after
        `timeout_s`.
        """
        line = self._begun if has_begun else self._new
        is_first = not self._begun and not line
        if is_first or not self._is_covered(demand, (each for *_, each in self._waiters())):
            result = self._attempt(demand, is_first)
            if result is not None:
                return result
        if len(line) >= self._max_queued:
            raise Overloaded(
                f"{self._max_queued} requests wait for this model already",
                retry_after_s=self.retry_after_s(),
            )
        key, waiter = self._enter(line, demand)
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await waiter.outcome
        except TimeoutError:
            raise WaitedTooLong from None
        finally:
            self._leave(key)
        if isinstance(outcome, BatonError):
            raise outcome
        return outcome

    def notify(self) -> None:
        """Something changed: try now, or when the pace allows."""
        if not len(self):
            return
        due_in_s = self._failed_at + PACE_S - asyncio.get_running_loop().time()
        if due_in_s <= 0:
            self.pump()
        else:
            self._set_timer(due_in_s)

    def pump(self) -> None:
        """Serve from the head on; behind one that has to wait, those who may find room still."""
        now = asyncio.get_running_loop().time()
        looks_behind = now - self._looked_behind_at >= RETRY_S
        if looks_behind:
            self._looked_behind_at = now
        in_vain: list[_Waiter[D, T]] = []
        for line, key, waiter in self._waiters():
            if waiter.outcome.done():  # cancelled, and has not run since
                del line[key]
            elif self._is_covered(waiter.demand, in_vain):
                continue
            elif (outcome := self._outcome(waiter, not in_vain)) is not None:
                del line[key]
                waiter.outcome.set_result(outcome)
            else:
                self._failed_at = now
                in_vain.append(waiter)
                if not looks_behind or len(in_vain) == MAX_IN_VAIN:
                    break
        self._set_timer(RETRY_S)

    def refuse_all(self, message: str) -> None:
        """Let all waiters try another router."""
        for line, key, waiter in self._waiters():
            del line[key]
            if not waiter.outcome.done():
                waiter.outcome.set_result(Unavailable(message, retry_after_s=_MIN_RETRY_AFTER_S))
        self._set_timer(RETRY_S)

    def _waiters(self) -> Iterator[tuple[dict[int, _Waiter[D, T]], int, _Waiter[D, T]]]:
        """In the order of the line, which may change meanwhile."""
        for line in (self._begun, self._new):
            for key, waiter in list(line.items()):
                yield line, key, waiter

    def _is_covered(self, demand: D, others: Iterable[_Waiter[D, T]]) -> bool:
        return any(self._covers(other.demand, demand) for other in others)

    def _outcome(self, waiter: _Waiter[D, T], is_first: bool) -> T | BatonError | None:
        """None when it has to go on waiting."""
        try:
            result = self._attempt(waiter.demand, is_first)
        except BatonError as error:
            return error
        if result is not None:
            self._count_grant()
        return result

    def _enter(self, line: dict[int, _Waiter[D, T]], demand: D) -> tuple[int, _Waiter[D, T]]:
        key = self._next_key
        self._next_key += 1
        waiter: _Waiter[D, T] = _Waiter(demand, asyncio.get_running_loop().create_future())
        line[key] = waiter
        self._set_timer(RETRY_S)
        return key, waiter

    def _leave(self, key: int) -> None:
        """A waiter that gives up may have stood in the way of those behind it."""
        if self._begun.pop(key, None) or self._new.pop(key, None):
            self.pump()

    def _set_timer(self, delay_s: float) -> None:
        """One timer while anybody waits; an earlier one that is set already stays."""
        if not len(self):
            self._granted_at = None
            self._clear_timer()
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        if self._timer is not None and self._timer_due_s > due_s:
            self._clear_timer()
        if self._timer is None:
            self._timer_due_s = due_s
            self._timer = loop.call_at(due_s, self._retry)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _retry(self) -> None:
        self._timer = None
        self.pump()

    def _count_grant(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._granted_at is not None:
            interval_s = now - self._granted_at
            self._mean_grant_s += _SMOOTHING * (interval_s - self._mean_grant_s)
        self._granted_at = now
