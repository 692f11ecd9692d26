"""The views that gateways follow: each model, its workers, and how long a request would wait.

Builds WatchAdmission's messages from the fleet and the queues; decides nothing. A message names the
workers that have changed since the one before, or all of them when a worker came or left. Whether a
worker is ready is told at once, its load every LOAD_S: no gateway decides by it. When nothing is
new, nothing is told but a sign of life every QUIET_S.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest, Overloaded
from baton.wire.v1 import router_pb2
from services.router.fleet.columns import Figure
from services.router.fleet.fleet import Fleet
from services.router.fleet.health import HealthState
from services.router.fleet.reported import DECODE, PREFILL, ReportedLoad
from services.router.fleet.worker import Worker
from services.router.pick.shortlist import MAX_PLAIN
from services.router.settings import Settings

LOAD_S = 2.0
# A cancelled request is told for so long: some regular messages.
CANCELLED_S = 1.0
MAX_CANCELLED = 256
MAX_CANCELLED_OF_TENANT = 64
# Every view has the names: one that is longer is not a request's.
MAX_CANCELLED_CHARS = 256
# A gateway that is so many messages behind gets a whole view.
MAX_BEHIND = 16
# When nothing changes a message comes this often: who follows takes a longer silence for a loss.
QUIET_S = 0.5
# How much too early, by the clock, a timer is taken as due: uvloop counts in whole milliseconds.
_TIMER_SLACK_S = 0.002


class _Told(NamedTuple):
    """What gateways know of a worker since `at`: its load, its state, and its silence."""

    at: float
    load: ReportedLoad
    num_changes: int
    is_silent: bool


class AdmissionView:
    """Builds the view of the fleet: all of it, or what has changed since it was built last."""

    def __init__(self, fleet: Fleet, settings: Settings, clock: Clock) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        # By endpoint, and the fleet's version to which they belong.
        self._told: dict[str, _Told] = {}
        self._version = -1

    def whole(
        self, num_queued: Mapping[str, int], queue_wait_s: Mapping[str, float]
    ) -> router_pb2.WatchAdmissionResponse:
        """Return all of it; `num_queued` and `queue_wait_s` are by model fingerprint."""
        view = router_pb2.WatchAdmissionResponse()
        for model_fp, model in sorted(self._fleet.models.items()):
            state = self._state(model_fp, num_queued, queue_wait_s)
            state.name = model.name
            state.revision = model.revision
            state.block_size = model.block_size
            state.max_model_len = model.max_model_len
            state.vocab_size = model.vocab_size
            state.eos_token_ids.extend(model.eos_token_ids)
            # Where no decode worker is known, prefill workers stand in.
            pool = self._fleet.of_model(model_fp, DECODE) or self._fleet.of_model(model_fp, PREFILL)
            registered = [worker.registration for worker in pool]
            state.engines.extend(sorted({each.engine for each in registered}))
            if registered:
                lacking = frozenset.intersection(*(each.unsupported for each in registered))
                state.unsupported.extend(sorted(lacking))
            state.workers.extend(self._worker_state(worker) for worker in self._workers(model_fp))
            view.models.append(state)
        return view

    def changes(
        self, num_queued: Mapping[str, int], queue_wait_s: Mapping[str, float]
    ) -> router_pb2.WatchAdmissionResponse:
        """Return what has changed since the last call, or all when a worker has come or left."""
        self._fleet.has_met_all()
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            self._told.clear()
            for model_fp in self._fleet.models:
                self._changed(model_fp)
            return self.whole(num_queued, queue_wait_s)
        view = router_pb2.WatchAdmissionResponse(is_delta=True)
        for model_fp in self._fleet.models:
            state = self._state(model_fp, num_queued, queue_wait_s)
            state.workers.extend(self._worker_state(worker) for worker in self._changed(model_fp))
            view.models.append(state)
        return view

    def _workers(self, model_fp: str) -> list[Worker]:
        decodes = self._fleet.of_model(model_fp, DECODE)
        return decodes + self._fleet.of_model(model_fp, PREFILL)

    def _changed(self, model_fp: str) -> list[Worker]:
        """The workers to tell of; they count as told."""
        now, changed = self._clock.now(), []
        for worker in self._workers(model_fp):
            is_silent = now - worker.reported_at > self._settings.stale_after_s
            told = self._told.get(worker.endpoint)
            if told is None or self._is_news(told, worker, is_silent=is_silent):
                self._told[worker.endpoint] = _Told(now, worker.load, worker.num_changes, is_silent)
                changed.append(worker)
        return changed

    def _is_news(self, told: _Told, worker: Worker, *, is_silent: bool) -> bool:
        if told.is_silent != is_silent or told.num_changes != worker.num_changes:
            return True
        return told.load is not worker.load and self._clock.now() - told.at >= LOAD_S

    def _state(
        self, model_fp: str, num_queued: Mapping[str, int], queue_wait_s: Mapping[str, float]
    ) -> router_pb2.ModelState:
        """What changes of a model, without its workers."""
        per_s, wait_s = self._prefill(model_fp)
        return router_pb2.ModelState(
            model_fp=model_fp,
            num_queued=num_queued.get(model_fp, 0),
            predicted_wait_s=[wait_s + queue_wait_s.get(model_fp, 0.0)],
            prefill_tokens_per_s=per_s,
        )

    def _prefill(self, model_fp: str) -> tuple[float, float]:
        """The measured prefill rate of the ready workers, in sum, and the seconds of queued prefill
        on the one that has the fewest; 0 without one."""
        role = PREFILL if self._fleet.of_model(model_fp, PREFILL) else DECODE
        pool = self._fleet.of_model(model_fp, role)
        if len(pool) > MAX_PLAIN:
            return self._prefill_of_columns(model_fp, role)
        pool = [worker for worker in pool if self._fleet.is_fit(worker)]
        speeds = self._fleet.speeds(model_fp, role)
        waits = (
            self._fleet.num_queued_prefill_tokens(worker)
            / speeds.of(worker.measured).prefill_tokens_per_s
            for worker in pool
        )
        return sum(w.load.prefill_tokens_per_s for w in pool), min(waits, default=0.0)

    def _prefill_of_columns(self, model_fp: str, role: int) -> tuple[float, float]:
        """The same of a large pool."""
        columns = self._fleet.columns(model_fp, role)
        others = self._fleet.columns(model_fp, DECODE if role == PREFILL else PREFILL)
        assert columns is not None
        now = self._clock.now()
        columns.expire_leases(now)
        is_fit = ~columns.unfit(now)
        if not is_fit.any():
            return 0.0, 0.0
        rates = columns.rates(others, now)
        waits = columns[Figure.QUEUED_TOKENS] / rates.prefill_per_s()
        return float(rates.own_prefill_per_s()[is_fit].sum()), float(waits[is_fit].min())

    def _worker_state(self, worker: Worker) -> router_pb2.WorkerState:
        return router_pb2.WorkerState(
            worker_id=worker.worker_id,
            endpoint=worker.endpoint,
            role=worker.registration.role,
            ready=self._fleet.has_met_all() and self._fleet.is_fit(worker),
            ejected=worker.health.state is HealthState.EJECTED,
            draining=worker.draining,
            stands_in=worker.registration.stands_in,
            num_running=worker.load.num_running,
            num_waiting=worker.load.num_waiting,
            kv_usage=1 - worker.load.num_blocks_free / worker.registration.num_blocks,
            totals=worker.load.totals,
            adapters=[
                router_pb2.Adapter(name=name, fingerprint=fingerprint)
                for name, fingerprint in worker.adapters.items()
            ],
        )


class Cancellations:
    """The requests that tenants have asked to end, told to all gateways for a moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: deque[tuple[float, router_pb2.CancelRequest]] = deque()

    def add(self, request: router_pb2.CancelRequest) -> None:
        """Add a request. Raises InvalidRequest, Overloaded when too many are being told."""
        if len(request.request_id) > MAX_CANCELLED_CHARS:
            raise InvalidRequest("no request has such an id", reason="not_found")
        self._forget_old()
        num_own = sum(asked.tenant == request.tenant for _, asked in self._asked)
        if len(self._asked) >= MAX_CANCELLED or num_own >= MAX_CANCELLED_OF_TENANT:
            raise Overloaded("too many requests are being cancelled", retry_after_s=CANCELLED_S)
        self._asked.append((self._clock.now(), request))

    def told(self) -> list[router_pb2.CancelRequest]:
        """The requests that gateways should hear of now."""
        self._forget_old()
        return [request for _, request in self._asked]

    def _forget_old(self) -> None:
        while self._asked and self._clock.now() - self._asked[0][0] > CANCELLED_S:
            self._asked.popleft()


class AdmissionLog:
    """The latest messages, the same for all gateways: each is built once.

    `changes` makes the next one, `whole` all that the messages so far have said, or more. Every
    `interval_s` it looks for changes, and tells what is new.
    """

    def __init__(
        self,
        clock: Clock,
        interval_s: float,
        whole: Callable[[], router_pb2.WatchAdmissionResponse],
        changes: Callable[[], router_pb2.WatchAdmissionResponse],
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._make_whole = whole
        self._make_changes = changes
        self._messages: deque[router_pb2.WatchAdmissionResponse] = deque(maxlen=MAX_BEHIND)
        self._number = 0
        self._due_at = -math.inf
        self._told_at = -math.inf
        self._whole: router_pb2.WatchAdmissionResponse | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def notify(self) -> None:
        """Look now, and not when it is time."""
        self._due_at = -math.inf
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self.notify()

    async def follow(
        self, *, takes_deltas: bool
    ) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        """Yield a whole view at once, then each message, on change and every QUIET_S."""
        number = -1
        while not self._closed:
            changed = self._changed
            self._advance()
            for message in self._after(number, takes_deltas):
                number = message.number
                yield message
            try:
                async with asyncio.timeout(max(self._due_at - self._clock.now(), 0.0)):
                    await changed.wait()
            except TimeoutError:
                pass

    def _advance(self) -> None:
        """Make the next message when it is due, if it says anything new or none was told lately."""
        now = self._clock.now()
        if now < self._due_at - _TIMER_SLACK_S:
            return
        self._due_at = now + self._interval_s
        self._whole = None
        message = self._make_changes()
        message.number = self._number
        is_lately = now < self._told_at + QUIET_S - _TIMER_SLACK_S
        if is_lately and self._messages and message == self._messages[-1]:
            return
        self._told_at = now
        self._number += 1
        message.number = self._number
        self._messages.append(message)

    def _after(
        self, number: int, takes_deltas: bool
    ) -> Sequence[router_pb2.WatchAdmissionResponse]:
        """The messages after this one; a whole view instead when it is too old."""
        if number == self._number:
            return ()
        if takes_deltas and number >= self._number - len(self._messages):
            return [each for each in self._messages if each.number > number]
        if self._whole is None:
            self._whole = self._make_whole()
            self._whole.number = self._number
        return [self._whole]
