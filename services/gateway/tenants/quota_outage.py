"""Quota while its service or its store is away or hangs: a breaker in front of its calls.

A call with a fallback waits SILENCE_S at most, and a little longer when this process was too busy
to hear an answer. If quota has answered nothing since it began, the breaker opens, and so it does
after MAX_FAILURES calls in a row that failed. While it is open, calls with a fallback fail at once,
also those that wait. A background call finds out when quota is back; no request does. Calls without
a fallback (a hard budget) wait as long as they may, within GRACE_S of the opening: quota may be
back in a moment. Keys that are not known yet are always asked for: quota has them in files, too,
and an answer from there does not say that its store is back.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from baton.runtime import logs
from baton.runtime.shared_stream import FrameStream
from baton.system.clock import Clock
from baton.wire.failures import BatonError, DeadlineExceeded, Unavailable
from baton.wire.v1 import quota_pb2
from services.gateway import instruments
from services.gateway.clients.protocols import CallContext, QuotaClient

T = TypeVar("T")

MAX_FAILURES = 5
SILENCE_S = 0.2
GRACE_S = 1.0
_PROBE_TIMEOUT_S = 1.0
_PROBE_PAUSE_S = 0.1
# A timer that comes so late, and the time that an answer then has to be read: the event loop was
# busy, and what quota answered meanwhile waits there. Looks are few: a loop may be busy for good.
_LATE_S, _LOOK_AGAIN_S, _MAX_LOOKS = 0.005, 0.02, 5
# A time on the loop's clock that has passed.
_AT_ONCE = 0.0
# The digest of no key: quota looks for it in its store, and answers that it is not valid.
NO_KEY = bytes(32)
_NO_ANSWER = frozenset({"unavailable", "quota_unavailable", "deadline_exceeded"})

_log = logs.get("quota_outage")


def is_outage(error: BatonError) -> bool:
    """True when quota did not answer, rather than refuse."""
    return error.reason in _NO_ANSWER


class GuardedQuota:
    """A QuotaClient behind a breaker. `run` probes while it is open; `on_open` is called then."""

    def __init__(self, quota: QuotaClient, clock: Clock, rng: random.Random) -> None:
        self.on_open: Callable[[], None] = _do_nothing
        self._quota = quota
        self._clock = clock
        self._rng = rng
        self._num_failures = 0
        self._answered_s = clock.now()
        # Its store has answered once.
        self._is_heard = False
        # None while it is closed.
        self._opened_s: float | None = None
        self._opened = asyncio.Event()
        # The limits of the calls that wait and have a fallback, and the timer of each.
        self._waits: dict[asyncio.Timeout, asyncio.TimerHandle] = {}

    @property
    def is_open(self) -> bool:
        """True while quota is taken to be away."""
        return self._opened_s is not None

    @property
    def _is_in_grace(self) -> bool:
        return self._opened_s is not None and self._clock.now() < self._opened_s + GRACE_S

    async def authenticate(
        self, key_digest: bytes, context: CallContext, *, has_fallback: bool = False
    ) -> quota_pb2.AuthenticateResponse:
        return await self._call(
            lambda: self._quota.authenticate(key_digest, context),
            has_fallback=has_fallback,
            is_asked_always=not has_fallback,
        )

    async def reserve(
        self,
        request: quota_pb2.ReserveRequest,
        context: CallContext,
        *,
        has_fallback: bool = False,
    ) -> quota_pb2.ReserveResponse:
        return await self._call(
            lambda: self._quota.reserve(request, context), has_fallback=has_fallback
        )

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        """Settle a record. Failures do not count: the short deadline proves no outage."""
        if self.is_open:
            raise NotAsked
        await self._quota.settle(record, context)
        self._answered()

    async def open_renewals(self) -> FrameStream[quota_pb2.RenewResponse, quota_pb2.RenewRequest]:
        return await self._quota.open_renewals()

    async def probe(self, deadline_s: float) -> None:
        """Raise BatonError when quota does not answer. Until it has answered once its store is
        asked, too: a gateway that knows no key yet serves nobody without it."""
        if self._is_heard:
            await self._quota.probe(deadline_s)
        else:
            await self._ask_for_no_key(deadline_s)

    async def run(self) -> None:
        """Find out, whenever the breaker is open, when quota is back; until cancelled."""
        while True:
            await self._opened.wait()
            with suppress(BatonError):
                await self._ask_for_no_key(_PROBE_TIMEOUT_S)
            await asyncio.sleep(_PROBE_PAUSE_S * (0.5 + self._rng.random()))

    async def _ask_for_no_key(self, deadline_s: float) -> None:
        """Raise BatonError when quota has no answer about a key that nobody has."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._quota.authenticate(NO_KEY, CallContext("", deadline_s))
        except TimeoutError:
            raise DeadlineExceeded("quota does not answer in time") from None
        except BatonError as error:
            self._note(error)
            if is_outage(error):
                raise
        else:
            self._answered()

    async def _call(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        has_fallback: bool,
        is_asked_always: bool = False,
    ) -> T:
        is_asked = is_asked_always or (self._is_in_grace and not has_fallback)
        if self.is_open and not is_asked:
            raise NotAsked
        try:
            answer = await (self._soon(call) if has_fallback else call())
        except BatonError as error:
            self._note(error)
            raise
        if not (isinstance(answer, quota_pb2.AuthenticateResponse) and answer.is_from_files):
            self._answered()
        return answer

    async def _soon(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call, or DeadlineExceeded after SILENCE_S or when the breaker opens."""
        began_s = self._clock.now()
        try:
            async with asyncio.timeout(None) as wait:
                self._look_again(wait, SILENCE_S, _MAX_LOOKS)
                try:
                    return await call()
                finally:
                    self._waits.pop(wait).cancel()
        except TimeoutError:
            if self._answered_s <= began_s:
                self._open("silent")
            raise DeadlineExceeded("quota does not answer in time") from None

    def _look_again(self, wait: asyncio.Timeout, delay_s: float, num_looks: int) -> None:
        due_s = self._clock.now() + delay_s
        self._waits[wait] = asyncio.get_running_loop().call_later(
            delay_s, self._look, wait, due_s, num_looks
        )

    def _look(self, wait: asyncio.Timeout, due_s: float, num_looks: int) -> None:
        """End a wait, but not at once when this comes late: the answer was held up, too."""
        if num_looks and self._clock.now() - due_s > _LATE_S:
            self._look_again(wait, _LOOK_AGAIN_S, num_looks - 1)
        else:
            _end(wait)

    def _note(self, error: BatonError) -> None:
        if not is_outage(error):
            self._answered()
            return
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            self._open(error.reason)

    def _answered(self) -> None:
        self._answered_s = self._clock.now()
        self._is_heard = True
        self._num_failures = 0
        if self._opened_s is not None:
            _log.info("quota_answers_again", away_s=round(self._answered_s - self._opened_s, 3))
            self._opened_s = None
            self._opened.clear()
            instruments.GATEWAY_QUOTA_AWAY.set(0)

    def _open(self, why: str) -> None:
        if self._opened_s is not None:
            return
        self._opened_s = self._clock.now()
        self._opened.set()
        instruments.GATEWAY_QUOTA_AWAY.set(1)
        _log.warning("quota_away", why=why)
        for wait in self._waits:
            _end(wait)
        self.on_open()


def _end(wait: asyncio.Timeout) -> None:
    if not wait.expired():
        wait.reschedule(_AT_ONCE)


def _do_nothing() -> None:
    """Do nothing: nobody follows the breaker."""


class NotAsked(Unavailable):
    """The breaker is open: quota has not heard of the call."""

    def __init__(self) -> None:
        super().__init__(
            "the quota service does not answer", reason="quota_unavailable", retry_after_s=1
        )
