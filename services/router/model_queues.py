"""The queues of one router, one for each model, with the admission to each.

All models that no worker has registered share one queue, so that clients cannot make new ones.
"""

from collections.abc import Collection

from baton.system.clock import Clock
from baton.wire.failures import Overloaded
from baton.wire.v1 import router_pb2
from services.router.pick_request import PickRequest
from services.router.queue import RequestQueue, WaitedTooLong
from services.router.selector import Selector
from services.router.settings import Settings
from services.router.shedding import Shedding

_UNKNOWN = ""


class _ModelQueue:
    """One model's queue and its admission."""

    def __init__(self, settings: Settings, selector: Selector, clock: Clock) -> None:
        self._settings = settings
        self._selector = selector
        self._clock = clock
        self._shedding = Shedding(settings.max_wait_s, clock)
        self.line = RequestQueue[PickRequest, router_pb2.PickResponse](
            selector.attempt, PickRequest.covers, self._admit, clock
        )

    async def pick(self, wanted: PickRequest) -> router_pb2.PickResponse:
        """Wait for a pick. Raises what the attempt raises, and Overloaded."""
        limit_s = min(self._settings.max_wait_s, max(wanted.due_at - wanted.arrived_at, 0.0))
        try:
            return await self.line.wait(wanted, limit_s, has_begun=wanted.has_begun)
        except WaitedTooLong:
            message = f"no worker had room within {limit_s:.3g} s"
            raise self._shedding.refusal(message, self.line.predicted_wait_s()) from None

    def _admit(self, wanted: PickRequest, wait_s: float, num_waiting: int) -> None:
        if num_waiting >= self._settings.max_queued:
            raise self._full(num_waiting, wait_s)
        if not wanted.has_begun and wait_s:
            left_s = wanted.due_at - self._clock.now()
            self._shedding.check(wait_s, self._selector.first_token_s(wanted), left_s)

    def _full(self, num_waiting: int, wait_s: float) -> Overloaded:
        message = f"{num_waiting} requests wait for this model already"
        return self._shedding.refusal(message, wait_s)


class ModelQueues:
    """All queues, made and forgotten with their models."""

    def __init__(self, settings: Settings, selector: Selector, clock: Clock) -> None:
        self._settings = settings
        self._selector = selector
        self._clock = clock
        self._queues: dict[str, _ModelQueue] = {}

    async def pick(self, wanted: PickRequest) -> router_pb2.PickResponse:
        """Wait in the model's queue for a pick. Raises BatonError."""
        return await self._of(wanted.model_fp).pick(wanted)

    def wake(self, model_fp: str) -> None:
        """Try the queues whose requests a worker of this model could take."""
        for key in (model_fp, _UNKNOWN):
            if key in self._queues:
                self._queues[key].line.notify()

    def num_queued(self) -> dict[str, int]:
        """The number of waiting requests, by the model's fingerprint."""
        return {fp: len(queue.line) for fp, queue in self._queues.items()}

    def waits_s(self) -> dict[str, float]:
        """The predicted wait of a new request, by the model's fingerprint."""
        return {fp: queue.line.predicted_wait_s() for fp, queue in self._queues.items()}

    def waited_for(self) -> set[str]:
        """The models for which requests wait."""
        return {fp for fp, queue in self._queues.items() if len(queue.line)}

    def follow(self, model_fps: Collection[str]) -> None:
        """Forget the queues of all models but these, unless a request waits there."""
        for fp in self._queues.keys() - model_fps - self.waited_for():
            del self._queues[fp]

    def refuse_all(self, message: str) -> None:
        """Refuse the requests that wait; their gateways try another router."""
        for queue in self._queues.values():
            queue.line.refuse_all(message)

    def _of(self, model_fp: str) -> _ModelQueue:
        key = model_fp if self._selector.is_known(model_fp) else _UNKNOWN
        if (queue := self._queues.get(key)) is None:
            queue = _ModelQueue(self._settings, self._selector, self._clock)
            self._queues[key] = queue
        return queue
