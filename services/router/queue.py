"""The queue of one model: bounded, first come first served, each waiter with its own deadline.

Streams that have begun and lost their worker go before requests of which nobody has seen anything.
A waiter brings an `attempt` that is tried when the waiter is first in line: at once, when something
changed (`notify`), and every RETRY_S because room also comes back by time alone (leases expire,
silent workers turn stale). Many changes in a row cost one attempt per PACE_S: a full fleet that
reports busily must not keep the router busy. Knows nothing of workers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from baton.wire.failures import BatonError, Overloaded, Unavailable

RETRY_S = 0.05
PACE_S = 0.01
# How much one interval between two grants moves their mean.
_SMOOTHING = 0.2
_MIN_RETRY_AFTER_S = 1.0
_MAX_RETRY_AFTER_S = 30.0

T = TypeVar("T")


class WaitedTooLong(Exception):
    """The waiter's time ran out before its attempt succeeded."""


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    # The result, or None to go on waiting; raises BatonError to refuse.
    attempt: Callable[[], T | None]
    # Carries errors as values: nobody may be left to retrieve an exception.
    outcome: "asyncio.Future[T | BatonError]"


class RequestQueue(Generic[T]):
    """At most `max_queued` waiters, and as many whose streams have begun. The head is served first,
    whatever those behind could get."""

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._begun: dict[int, _Waiter[T]] = {}
        self._new: dict[int, _Waiter[T]] = {}
        self._next_key = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._failed_at = float("-inf")
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

    async def wait(
        self, attempt: Callable[[], T | None], timeout_s: float, *, has_begun: bool = False
    ) -> T:
        """The first result of `attempt`; leaves the queue when the caller is cancelled.

        Raises what `attempt` raises, Overloaded when the queue is full, WaitedTooLong after
        `timeout_s`.
        """
        line = self._begun if has_begun else self._new
        if not self._begun and not line:
            result = attempt()
            if result is not None:
                return result
        if len(line) >= self._max_queued:
            raise Overloaded(
                f"{self._max_queued} requests wait for this model already",
                retry_after_s=self.retry_after_s(),
            )
        key, waiter = self._enter(line, attempt)
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
        """Serve from the head on, until one has to go on waiting."""
        while line := self._begun or self._new:
            key, waiter = next(iter(line.items()))
            if waiter.outcome.done():  # cancelled, and has not run since
                del line[key]
                continue
            outcome: T | BatonError | None
            try:
                outcome = waiter.attempt()
            except BatonError as error:
                outcome = error
            if outcome is None:
                self._failed_at = asyncio.get_running_loop().time()
                break
            del line[key]
            if not isinstance(outcome, BatonError):
                self._count_grant()
            waiter.outcome.set_result(outcome)
        self._set_timer(RETRY_S)

    def refuse_all(self, message: str) -> None:
        """Let all waiters try another router."""
        waiters = [*self._begun.values(), *self._new.values()]
        self._begun.clear()
        self._new.clear()
        for waiter in waiters:
            if not waiter.outcome.done():
                waiter.outcome.set_result(Unavailable(message, retry_after_s=_MIN_RETRY_AFTER_S))
        self._set_timer(RETRY_S)

    def _enter(
        self, line: dict[int, _Waiter[T]], attempt: Callable[[], T | None]
    ) -> tuple[int, _Waiter[T]]:
        key = self._next_key
        self._next_key += 1
        waiter = _Waiter(attempt, asyncio.get_running_loop().create_future())
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
