"""The queues of one router, one for each model, with the admission to each.

All models that no worker has registered share one queue, so that clients cannot make new ones.
"""

from collections.abc import Collection
from itertools import islice

from baton.system.clock import Clock
from baton.wire.v1 import peers_pb2, router_pb2
from services.router.peers.news import MAX_TENANTS, PeerNewsLog
from services.router.pick.pick_request import PickRequest
from services.router.pick.placement import Placement
from services.router.pick.selector import Selector
from services.router.queue.fair_line import ANYBODY, Turn
from services.router.queue.queue import RequestQueue, WaitedTooLong
from services.router.queue.shedding import Shedding
from services.router.settings import Settings

_UNKNOWN = ""


class _ModelQueue:
    """One model's queue and its admission."""

    def __init__(
        self, settings: Settings, selector: Selector, news: PeerNewsLog, clock: Clock
    ) -> None:
        self._settings = settings
        self._selector = selector
        self._news = news
        self._clock = clock
        self._shedding = Shedding(settings.max_wait_s, clock)
        self.queue = RequestQueue[PickRequest, Placement](
            self._attempt, self._covers, self._admit, clock
        )

    async def pick(self, wanted: PickRequest) -> router_pb2.PickResponse:
        """Wait for a pick. Raises what the attempt raises, and Overloaded."""
        limit_s = min(self._settings.max_wait_s, max(wanted.due_at - wanted.arrived_at, 0.0))
        try:
            placement = await self.queue.wait(
                wanted, limit_s, wanted.turn, has_begun=wanted.has_begun
            )
            return placement.response
        except WaitedTooLong:
            message = f"no worker had room within {limit_s:.3g} s"
            wait_s = self.queue.predicted_wait_s(wanted.turn)
            raise self._shedding.refusal(message, wait_s) from None

    def _attempt(self, wanted: PickRequest, is_first: bool) -> Placement | None:
        """Try to place a request, and count its service; that of a stream which has begun is not
        its tenant's doing."""
        line, is_new = self.queue.line, not wanted.has_begun
        leaves_room = is_new and line.must_leave_room(wanted.turn)
        is_quiet = is_new and not leaves_room and line.goes_first(wanted.turn)
        placement = self._selector.attempt(wanted, is_first, leaves_room, is_quiet)
        if placement is None:
            return None
        if is_new:
            placement.response.is_quiet = is_quiet
            line.charge(wanted.turn, placement.engine_s)
        if self._news.has_peers:
            self._news.placed(wanted, placement)
        return placement

    def _covers(self, one: PickRequest, other: PickRequest) -> bool:
        """Return whether `other` finds no room where `one` finds none."""
        if not one.covers(other):
            return False
        line, own, turn = self.queue.line, one.turn, other.turn
        is_one_line = own.tenant == turn.tenant and own.priority == turn.priority
        return is_one_line or not line.must_leave_room(own) or line.must_leave_room(turn)

    def _admit(self, wanted: PickRequest) -> None:
        """Raise Overloaded when the request must not wait."""
        wait_s = self.queue.predicted_wait_s(wanted.turn)
        if (full := self._full(wanted)) is not None:
            raise self._shedding.refusal(full, wait_s)
        if not wanted.has_begun and wait_s:
            left_s = wanted.due_at - self._clock.now()
            self._shedding.check(wait_s, self._selector.first_token_s(wanted), left_s)

    def _full(self, wanted: PickRequest) -> str | None:
        """The bound that the queue has reached, if there is one.

        A tenant alone may fill the queue. One that comes later has its share of it all the same, so
        that the queue may come to twice its size.
        """
        settings, queue, turn = self._settings, self.queue, wanted.turn
        if wanted.has_begun:
            is_full = queue.num_begun >= settings.max_queued
            return "too many streams look for another worker" if is_full else None
        held = queue.line.held(turn.tenant)
        num_tenants = queue.line.num_tenants + (not held.num_requests)
        if len(queue.line) >= 2 * settings.max_queued:
            return f"{len(queue.line)} requests wait for this model already"
        if held.num_requests >= max(1, settings.max_queued // num_tenants):
            return f"{held.num_requests} requests of this tenant wait for this model already"
        num_bytes = held.num_bytes + turn.num_bytes
        if held.num_requests and num_bytes > settings.max_queued_bytes // num_tenants:
            return f"requests of this tenant keep {held.num_bytes} bytes of the queue already"
        return None


class ModelQueues:
    """All queues, made and forgotten with their models."""

    def __init__(
        self, settings: Settings, selector: Selector, news: PeerNewsLog, clock: Clock
    ) -> None:
        self._settings = settings
        self._selector = selector
        self._news = news
        self._clock = clock
        self._queues: dict[str, _ModelQueue] = {}

    async def pick(self, wanted: PickRequest) -> router_pb2.PickResponse:
        """Wait in the model's queue for a pick. Raises BatonError."""
        return await self._of(wanted.model_fp).pick(wanted)

    def wake(self, model_fp: str, after_s: float = 0.0) -> None:
        """Try the queues whose requests a worker of this model could take, now or in `after_s`."""
        for key in (model_fp, _UNKNOWN):
            if key in self._queues:
                self._queues[key].queue.notify(after_s)

    def charge(self, model_fp: str, turn: Turn, service_s: float) -> None:
        """Count the service that a tenant has had at another router."""
        if self._selector.is_known(model_fp):
            self._of(model_fp).queue.line.charge(turn, service_s)

    def lines(self) -> peers_pb2.PeerLines:
        """The lines as the other routers are told of them."""
        lines = peers_pb2.PeerLines()
        for model_fp, model in self._queues.items():
            priority, weights = model.queue.line.claims()
            reserved = self._selector.reserved(model_fp)
            if weights or reserved:
                line = lines.lines.add(
                    model_fp=model_fp, priority=priority, reserved_worker_id=reserved
                )
                for tenant, weight in islice(weights.items(), MAX_TENANTS):
                    line.tenants.add(tenant=tenant, weight=weight)
        return lines

    def num_queued(self) -> dict[str, int]:
        """The number of waiting requests, by the model's fingerprint."""
        return {fp: len(queue.queue) for fp, queue in self._queues.items()}

    def waits_s(self) -> dict[str, float]:
        """The predicted wait of a new request, by the model's fingerprint."""
        return {fp: queue.queue.predicted_wait_s(ANYBODY) for fp, queue in self._queues.items()}

    def waited_for(self) -> set[str]:
        """The models for which requests wait."""
        return {fp for fp, queue in self._queues.items() if len(queue.queue)}

    def follow(self, model_fps: Collection[str]) -> None:
        """Forget the queues of all models but these, unless a request waits there."""
        for fp in self._queues.keys() - model_fps - self.waited_for():
            del self._queues[fp]

    def refuse_all(self, message: str) -> None:
        """Refuse the requests that wait; their gateways try another router."""
        for queue in self._queues.values():
            queue.queue.refuse_all(message)

    def _of(self, model_fp: str) -> _ModelQueue:
        key = model_fp if self._selector.is_known(model_fp) else _UNKNOWN
        if (queue := self._queues.get(key)) is None:
            queue = _ModelQueue(self._settings, self._selector, self._news, self._clock)
            self._queues[key] = queue
        return queue
