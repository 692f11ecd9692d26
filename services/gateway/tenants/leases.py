"""Quota leases of running requests: renewed together, extended before tokens may be produced.

One stream to the quota service renews all leases every BEAT_S; a lease that runs short asks at
once. An extension that the key's minute has no room for is asked for again when it has
(tenants/shortage.py): its request only pauses. One that the budget has no room for keeps the old
grant; each renewal asks again. A lost lease stops its request.

A stream that ends is opened again at once, at another replica if this one leaves, and leases that
asked wait for it. While no replica answers, leases stay as they are: soft tenants get the tokens
that they ask for out of this gateway's own buckets (settling corrects it), tenants with a hard
budget pause until quota is back.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator

from baton.runtime import logs
from baton.runtime.shared_stream import FrameStream, FrameWriter, StreamLost
from baton.wire.failures import BatonError, Unavailable
from baton.wire.v1 import quota_pb2
from services.gateway.tenants.lease import Lease, Standing
from services.gateway.tenants.local_buckets import LocalBuckets
from services.gateway.tenants.quota_outage import GuardedQuota
from services.gateway.tenants.shortage import ShortageLines

BEAT_S = 5.0
# How long a gateway that leaves waits for the answer to its last beat.
_LAST_BEAT_S = 1.0
MAX_LEASES = 100_000
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 2.0

_log = logs.get("leases")


class LeaseRenewer:
    """Renews all leases of this gateway. `run` serves until cancelled."""

    def __init__(
        self, quota: GuardedQuota, buckets: LocalBuckets, gateway_id: str, rng: random.Random
    ) -> None:
        self._quota = quota
        self._buckets = buckets
        self._gateway_id = gateway_id
        self._rng = rng
        quota.on_open = self._answer_all_alone
        self._leases: dict[str, Lease] = {}
        # The leases under each account.
        self._num_open: Counter[str] = Counter()
        self._urgent: dict[str, Lease] = {}
        self._beat_due = False
        self._beat_heard = asyncio.Event()
        # What quota is told of the fleet's workers with a beat.
        self.totals_of_workers: Callable[[], list[quota_pb2.WorkerTotals]] = list
        self._lines = ShortageLines(self._ask)
        # Streams that ended in a row since the last answer; from two on quota is away.
        self._num_ends = 1
        self._writer: FrameWriter[quota_pb2.RenewRequest] | None = None

    def open_request_ids(self) -> Iterator[str]:
        """The usage ids of all leases that are renewed."""
        yield from self._leases

    def num_open_of(self, account: str) -> int:
        """The number of leases under an account."""
        return self._num_open[account]

    def open(self, lease: Lease) -> None:
        assert len(self._leases) < MAX_LEASES, "the number of open requests is bounded before"
        assert lease.request_id not in self._leases, "request ids are unique"
        self._leases[lease.request_id] = lease
        self._num_open.update(account.name for account in lease.accounts)

    def close(self, lease: Lease) -> None:
        """Stop renewing a lease: its request settles."""
        if self._leases.pop(lease.request_id, None):
            self._count_less(lease)
        self._urgent.pop(lease.request_id, None)
        if lease.standing is Standing.SHORT:
            self._lines.leave(lease)

    def _count_less(self, lease: Lease) -> None:
        for account in lease.accounts:
            self._num_open[account.name] -= 1
            if not self._num_open[account.name]:
                del self._num_open[account.name]

    def ask(self, lease: Lease, num_wanted: int) -> None:
        """Ask for `num_wanted` output tokens in all; `lease.on_change` is called at the answer."""
        lease.num_wanted = num_wanted
        self._ask(lease)

    def tell(self, lease: Lease) -> None:
        """Renew a lease at once: it holds fewer tokens than quota knows."""
        if self._writer is not None:
            self._urgent[lease.request_id] = lease
            self._writer.wake()

    async def beat(self) -> None:
        """Renew all leases now, and wait a moment until quota has heard; not while it is away."""
        writer = self._writer
        if writer is None:
            return
        self._beat_heard.clear()
        self._beat_due = True
        writer.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BEAT_S):
                await self._beat_heard.wait()

    def _ask(self, lease: Lease) -> None:
        if lease.local or self._is_alone:
            self._answer_alone(lease)
            return
        self._urgent[lease.request_id] = lease
        if self._writer is not None:
            self._writer.wake()

    @property
    def _is_alone(self) -> bool:
        return self._quota.is_open or (self._writer is None and self._num_ends > 1)

    async def run(self) -> None:
        """Keep the renewal stream open until cancelled."""
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                stream = await self._quota.open_renewals()
                await self._renew_over(stream)
            except BatonError as error:
                _log.warning("renewals_unavailable", reason=error.reason)
            self._num_ends += 1
            if self._num_ends == 1:
                retry_s = _FIRST_RETRY_S
                continue
            self._answer_all_alone()
            await asyncio.sleep(retry_s * (0.5 + self._rng.random()))
            retry_s = min(retry_s * 2, _LAST_RETRY_S)

    async def _renew_over(
        self, stream: FrameStream[quota_pb2.RenewResponse, quota_pb2.RenewRequest]
    ) -> None:
        self._writer = FrameWriter(stream, drain=self._next_request)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._writer.run()), tasks.create_task(self._beats())]
                while (response := await stream.read()) is not None:
                    self._take_in(response)
                for task in running:
                    task.cancel()
        except* StreamLost:
            _log.warning("renewals_lost", num_leases=len(self._leases))
        finally:
            self._writer = None
            await stream.close()

    async def _beats(self) -> None:
        while True:
            self._ask_alone_again()
            self._beat_due = True
            assert self._writer is not None
            self._writer.wake()
            await asyncio.sleep(BEAT_S)

    def _next_request(self) -> quota_pb2.RenewRequest | None:
        """The next message: at a beat all leases and this gateway's name, else what is urgent."""
        is_beat, self._beat_due = self._beat_due, False
        leases = self._leases if is_beat else self._urgent
        renewals = [lease.to_wire() for lease in leases.values() if lease.is_renewed]
        self._urgent.clear()
        if is_beat:
            return quota_pb2.RenewRequest(
                leases=renewals, gateway_id=self._gateway_id, workers=self.totals_of_workers()
            )
        return quota_pb2.RenewRequest(leases=renewals) if renewals else None

    def _take_in(self, response: quota_pb2.RenewResponse) -> None:
        self._num_ends = 0
        if response.num_gateways:  # the answer to a beat
            self._buckets.num_gateways = response.num_gateways
            self._beat_heard.set()
        for state in response.leases:
            lease = self._leases.get(state.request_id)
            if lease is None:
                continue
            lease.answer(state)
            self._queue(lease, state.retry_after_ms / 1000)
            lease.on_change()

    def _answer_all_alone(self) -> None:
        """Answer every lease that asked and got no answer, whether its ask was written or not."""
        self._urgent.clear()
        for lease in list(self._leases.values()):
            if lease.is_asking and lease.standing in (Standing.HELD, Standing.SHORT):
                self._answer_alone(lease)

    def _ask_alone_again(self) -> None:
        """Answer this gateway's own leases that found a budget's part spent: quota may have said
        since what is left of it."""
        for lease in list(self._leases.values()):
            if lease.local and lease.standing is Standing.AWAY:
                self._answer_alone(lease)

    def _answer_alone(self, lease: Lease) -> None:
        self._queue(lease, self._extend_alone(lease))
        lease.on_change()

    def _extend_alone(self, lease: Lease) -> float:
        """Grant what a lease asks for out of this gateway's buckets, or return the time to wait."""
        try:
            wait_s, lease.spent_limit = self._buckets.extend(
                lease.accounts, lease.model, lease.num_missing
            )
        except Unavailable:
            lease.standing = Standing.AWAY
            return 0.0
        lease.standing = Standing.SHORT if wait_s else Standing.HELD
        if not wait_s:
            lease.num_granted += lease.num_missing
        return wait_s

    def _queue(self, lease: Lease, wait_s: float) -> None:
        """Let a lease that is short wait in its key's line, and any other one leave it."""
        if lease.standing is Standing.SHORT:
            self._lines.wait(lease, wait_s)
        else:
            self._lines.leave(lease)
