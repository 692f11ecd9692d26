"""The queue of one model: fair between tenants, each waiter with its own deadline.

Streams that have begun and lost their worker go before requests of which nobody has seen anything;
those go in the order of `fair_line.py`. Who is first in line is tried first: at once, when
something changed (`notify`), and every RETRY_S because room also comes back by time alone (leases
expire, silent workers turn stale). Who needs less than all who found no room before it is tried
after them, so that one who needs much holds up nobody else; what keeps it from waiting for ever is
the attempt's business (`pick/head_of_line.py`). Many changes in a row cost one attempt per PACE_S,
and those behind the first are looked at every RETRY_S: a full fleet that reports busily must not
keep the router busy. Knows nothing of workers.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from baton.system.clock import Clock
from baton.wire.failures import BatonError, Unavailable
from services.router.queue.fair_line import ANYBODY, FairLine, Turn, Waiting

RETRY_S = 0.05
PACE_S = 0.01
# How much too early, by the clock, a timer is taken as due: uvloop counts in whole milliseconds.
TIMER_SLACK_S = 0.002
# When so many waiters have found no room, no further one is tried until the next turn.
MAX_IN_VAIN = 4
_STOPPING_RETRY_AFTER_S = 1.0

D = TypeVar("D")
T = TypeVar("T")


class RetryTimer:
    """The one timer of a queue, on the running event loop; calls `retry` when it is due."""

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
        """Be due no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        left_s = self._due_at - self._clock.now()
        if left_s > TIMER_SLACK_S:
            self.set(left_s)
        else:
            self._retry()


class WaitedTooLong(Exception):
    """The waiter's time ran out before its attempt succeeded."""


@dataclass(slots=True, eq=False)
class _Waiter(Waiting, Generic[D, T]):
    demand: D
    # Errors are values here: a cancelled waiter would leave an exception unretrieved.
    outcome: "asyncio.Future[T | BatonError]"


class RequestQueue(Generic[D, T]):
    """The waiters of one model.

    `attempt(demand, is_first)` returns a waiter's result, or None to let it wait on; it raises
    BatonError to refuse. `covers(one, other)` is true when `other` finds no room where `one` finds
    none. `admit(demand)` raises BatonError when a request must not wait.
    """

    def __init__(
        self,
        attempt: Callable[[D, bool], T | None],
        covers: Callable[[D, D], bool],
        admit: Callable[[D], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._attempt = attempt
        self._covers = covers
        self._admit = admit
        # The waiters whose streams have begun, in order; the values mean nothing.
        self._begun: dict[_Waiter[D, T], None] = {}
        self.line: FairLine[_Waiter[D, T]] = FairLine(clock)
        self._num_entered = 0
        self._timer = RetryTimer(clock, self.pump)
        self._failed_at = self._looked_behind_at = float("-inf")

    def __len__(self) -> int:
        return len(self._begun) + len(self.line)

    @property
    def num_begun(self) -> int:
        """The waiters whose streams have begun."""
        return len(self._begun)

    def predicted_wait_s(self, turn: Turn) -> float:
        """The wait of a new request, from the pace of the latest grants."""
        return self.line.predicted_wait_s(turn, self.num_begun)

    async def wait(
        self, demand: D, timeout_s: float, turn: Turn = ANYBODY, *, has_begun: bool = False
    ) -> T:
        """Wait for the result of `attempt`; leaves the queue when the caller is cancelled.

        Raises what `attempt` and `admit` raise, and WaitedTooLong after `timeout_s`.
        """
        is_first = not self._begun and (has_begun or not len(self.line))
        if is_first or not self._is_covered(demand, self._waiters()):
            result = self._attempt(demand, is_first)
            if result is not None:
                return result
        self._admit(demand)
        waiter = self._enter(demand, turn, has_begun=has_begun)
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await waiter.outcome
        except TimeoutError:
            raise WaitedTooLong from None
        finally:
            # A waiter that gives up may have stood in the way of those behind it.
            if self._take_out(waiter):
                self.notify()
        if isinstance(outcome, BatonError):
            raise outcome
        return outcome

    def notify(self, after_s: float = 0.0) -> None:
        """Try the waiters after a change, in `after_s` or when PACE_S allows."""
        if not len(self):
            return
        due_in_s = max(self._failed_at + PACE_S - self._clock.now(), after_s)
        if due_in_s <= 0:
            self.pump()
        else:
            self._timer.set(due_in_s)

    def pump(self) -> None:
        """Try the waiters in order; behind one that has to wait, those that it does not cover."""
        now = self._clock.now()
        looks_behind = now - self._looked_behind_at >= RETRY_S - TIMER_SLACK_S
        if looks_behind:
            self._looked_behind_at = now
        in_vain: list[_Waiter[D, T]] = []
        for waiter in self._waiters():
            if waiter.outcome.done():  # cancelled, and its task has not run since
                self._take_out(waiter)
            elif self._is_covered(waiter.demand, in_vain):
                continue
            elif (outcome := self._outcome(waiter, not in_vain)) is not None:
                self._take_out(waiter, is_granted=not isinstance(outcome, BatonError))
                waiter.outcome.set_result(outcome)
            else:
                self._failed_at = now
                in_vain.append(waiter)
                if not looks_behind or len(in_vain) == MAX_IN_VAIN:
                    break
        self._set_timer()

    def refuse_all(self, message: str) -> None:
        """Refuse all waiters; their gateways try another router."""
        refusal = Unavailable(message, retry_after_s=_STOPPING_RETRY_AFTER_S)
        for waiter in list(self._waiters()):
            self._take_out(waiter)
            if not waiter.outcome.done():
                waiter.outcome.set_result(refusal)
        self._set_timer()

    def _waiters(self) -> Iterator[_Waiter[D, T]]:
        """The waiters in order; they may leave meanwhile."""
        return chain(list(self._begun), self.line.in_order())

    def _is_covered(self, demand: D, others: Iterable[_Waiter[D, T]]) -> bool:
        return any(self._covers(other.demand, demand) for other in others)

    def _outcome(self, waiter: _Waiter[D, T], is_first: bool) -> T | BatonError | None:
        """The waiter's result or error, or None when it has to wait on."""
        try:
            return self._attempt(waiter.demand, is_first)
        except BatonError as error:
            return error

    def _enter(self, demand: D, turn: Turn, *, has_begun: bool) -> _Waiter[D, T]:
        self._num_entered += 1
        outcome: asyncio.Future[T | BatonError] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(turn, self._num_entered, self._clock.now(), demand, outcome)
        if has_begun:
            self._begun[waiter] = None
        else:
            self.line.enter(waiter)
        self._set_timer()
        return waiter

    def _take_out(self, waiter: _Waiter[D, T], *, is_granted: bool = False) -> bool:
        """Take a waiter out; returns whether it was there."""
        if waiter in self._begun:
            del self._begun[waiter]
            return True
        if is_granted:
            self.line.granted(waiter)
            return True
        return self.line.leave(waiter)

    def _set_timer(self) -> None:
        """Try again in RETRY_S at the latest, while there is a waiter."""
        if len(self):
            self._timer.set(RETRY_S)
        else:
            self._timer.clear()
