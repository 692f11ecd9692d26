"""The tokens that quota lets a running request produce: its lease, and the credit from it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from baton.wire.failures import BatonError, DeadlineExceeded, LimitExceeded, Unavailable
from services.gateway.tenants.lease import (
    LOW_TOKENS,
    Lease,
    Standing,
    extension_share,
    nothing_changes,
)
from services.gateway.tenants.leases import LeaseRenewer
from services.gateway.workers.attempt import Attempt

AHEAD_TOKENS = 64
STEP_TOKENS = 16


def _send_nothing(choice: int, up_to_index: int) -> None:
    """Send no credit: between two attempts it is only counted."""


class CreditMeter:
    """The credit of a request's choices: how far a worker may run ahead of the client.

    It is at most AHEAD_TOKENS beyond what the client's socket accepted, and never beyond what the
    quota lease grants. Credit is an absolute output index per choice. It goes up in steps of at
    least STEP_TOKENS, so that credits of many requests share one frame. Knows neither streams nor
    text. `give(choice, up_to_index)` sends it to the current attempt.
    """

    def __init__(
        self, lease: Lease, *, num_choices: int, max_tokens: int, extension_tokens: int
    ) -> None:
        self._lease = lease
        self._max_tokens = max_tokens
        self._ceiling = num_choices * max_tokens
        self._extension_tokens = extension_tokens
        initial = min(AHEAD_TOKENS, max_tokens, lease.num_granted // num_choices)
        self._credited = [initial] * num_choices
        self._accepted = [0] * num_choices
        # The tokens that the client must have taken before credit goes up again.
        self._due = [0] * num_choices
        self._open = set(range(num_choices))
        # Counts how often credit went up that was not for tokens that the client took.
        self.num_raises = 0
        self._give: Callable[[int, int], None] = _send_nothing
        self._ask: Callable[[int], None] | None = None
        self._book()

    def ask_with(self, ask: Callable[[int], None]) -> None:
        """Use `ask(num_wanted)` from now on to ask quota for so many tokens in all."""
        self._ask = ask
        self.replenish()

    def is_paid(self, num_received: Mapping[int, int]) -> bool:
        """True when each of these choices may emit one more token, or has all it can have."""
        return all(
            num < self._credited[choice] or num == self._max_tokens
            for choice, num in num_received.items()
        )

    def ahead(self, num_received: Mapping[int, int]) -> int:
        """The tokens that every one of these choices may emit beyond those received: the initial
        credit of a Submit."""
        return min(self._credited[choice] - num for choice, num in num_received.items())

    def attach(self, give: Callable[[int, int], None], given: Mapping[int, int]) -> None:
        """Begin to send credit to a new attempt, which has it up to these output indexes."""
        self._give = give
        for choice, up_to_index in given.items():
            if self._credited[choice] > up_to_index:
                give(choice, self._credited[choice])

    def detach(self) -> None:
        """Stop sending credit: the attempt is over."""
        self._give = _send_nothing

    def accepted(self, choice: int, num_tokens: int) -> None:
        """Note that the client took everything up to output index `num_tokens` of this choice."""
        self._accepted[choice] = num_tokens
        if num_tokens >= self._due[choice] and choice in self._open:
            self._raise_credit(choice)
            self._extend_when_low()

    def end_choice(self, choice: int, num_tokens: int) -> None:
        """End a choice; its unused credit goes to the others."""
        self._open.discard(choice)
        self._credited[choice] = num_tokens
        self.replenish()

    def replenish(self) -> None:
        """Give the credit that is due after the grant grew, or after credit came back."""
        for choice in self._open:
            self.num_raises += self._raise_credit(choice)
        self._book()
        self._extend_when_low()

    def is_paused(self, num_received: Mapping[int, int]) -> bool:
        """True when none of these choices may emit another token before quota grants more."""
        return not any(self.is_paid({choice: num}) for choice, num in num_received.items())

    @property
    def spent_budget(self) -> str:
        """The name of the budget that ends choices."""
        return self._lease.spent_limit or "budget"

    @property
    def num_credited(self) -> int:
        """The tokens that the choices may have emitted, over all choices."""
        return sum(self._credited)

    def starved(self, choice: int, num_received: int) -> bool:
        """True when the choice used all its credit and will get no more: it ends here."""
        lease = self._lease
        return (
            choice in self._open
            and num_received >= self._credited[choice]
            and self._credited[choice] < self._max_tokens
            and self._num_free <= 0
            and (lease.standing is Standing.SPENT or lease.num_granted >= self._ceiling)
        )

    @property
    def _num_free(self) -> int:
        return self._lease.num_granted - self.num_credited

    def _raise_credit(self, choice: int) -> bool:
        target = min(self._accepted[choice] + AHEAD_TOKENS, self._max_tokens)
        num_free = self._num_free
        step = min(target - self._credited[choice], num_free)
        # A last small step must not wait for a full one.
        is_last = target == self._max_tokens or num_free < STEP_TOKENS
        if step >= STEP_TOKENS or (step > 0 and is_last):
            self._credited[choice] += step
            self._book()
            self._give(choice, self._credited[choice])
        else:
            step = 0
        self._set_due(choice)
        return step > 0

    def _set_due(self, choice: int) -> None:
        """Leave out the calls of `accepted` that would change nothing: all but one in STEP_TOKENS.
        When more is granted, `replenish` looks again."""
        num_credited = self._credited[choice]
        if num_credited >= self._max_tokens:
            self._due[choice] = self._max_tokens + 1
        elif self._num_free < STEP_TOKENS:
            self._due[choice] = num_credited - AHEAD_TOKENS
        else:
            full_step = num_credited - AHEAD_TOKENS + STEP_TOKENS
            self._due[choice] = min(full_step, self._max_tokens - AHEAD_TOKENS)

    def _extend_when_low(self) -> None:
        lease = self._lease
        if self._ask is None or lease.num_granted >= self._ceiling or lease.is_asking:
            return
        if self._num_free < LOW_TOKENS:
            share = extension_share(lease.limits.limit_tokens)
            num_more = min(self._extension_tokens, share)
            self._ask(min(lease.num_granted + num_more, self._ceiling))

    def _book(self) -> None:
        self._lease.num_credited = self.num_credited


class Payment:
    """Keeps the credit of one request and of its current attempt equal to its lease."""

    def __init__(self, lease: Lease, meter: CreditMeter, leases: LeaseRenewer) -> None:
        self.meter = meter
        self._lease = lease
        self._leases = leases
        self._attempt: Attempt | None = None
        self._changed = asyncio.Event()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Ask quota for more tokens, and follow its answers, while attempts run."""
        lease = self._lease
        lease.on_change = self._on_change
        self.meter.ask_with(partial(self._leases.ask, lease))
        try:
            yield
        finally:
            lease.on_change = nothing_changes

    def check(self) -> None:
        """Raise Unavailable when the lease was lost."""
        if self._lease.standing is Standing.LOST:
            raise _lease_lost()

    @contextmanager
    def explaining(self, received: Callable[[], Mapping[int, int]]) -> Iterator[None]:
        """Name the shortage as the reason, where it is one, why no token came in time. `received`:
        the tokens of each open choice."""
        try:
            yield
        except DeadlineExceeded as error:
            if self.meter.is_paused(received()):
                raise self.overdue() from error
            raise

    def overdue(self) -> BatonError:
        """The failure of a request that waited for a grant for as long as it may."""
        lease = self._lease
        if lease.standing is Standing.SHORT and lease.spent_limit:
            return LimitExceeded(f"The {lease.spent_limit} had no room for the rest in time.")
        return Unavailable("quota granted no more tokens in time", reason="quota_unavailable")

    async def changed(self) -> None:
        """Wait for an answer of quota since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def attach(self, attempt: Attempt, given: Mapping[int, int]) -> None:
        """Begin to send credit to a new attempt, which has it up to these output indexes."""
        self._attempt = attempt
        self.meter.attach(attempt.give, given)

    def detach(self) -> None:
        """Stop sending credit: the attempt is over."""
        self._attempt = None
        self.meter.detach()

    def _on_change(self) -> None:
        self.meter.replenish()
        self._changed.set()
        if self._attempt is not None:
            if self._lease.standing is Standing.LOST:
                self._attempt.abandon(_lease_lost())
            self._attempt.poke()


def _lease_lost() -> BatonError:
    return Unavailable("the quota lease was lost", reason="quota_unavailable")
