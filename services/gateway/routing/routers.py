"""All routers of the fleet as one: follows each one's view, and asks one of them for each pick.

All routers pick, for every model. A request goes to the first one, in an order that depends on its
prompt (rendezvous hash of model, router and the key of `prompt_keys.py`), of those that speak and
know nearly all ready workers that any of them knows for the model; so one that has just started is
asked only when it knows the fleet. Where zones are known, routers of the gateway's own zone come
before others. When a router leaves, its share of the requests goes to the others, and all other
requests stay where they are. A pick that a router could not answer is
repeated at the next one. Knows no network; each router is a RouterClient (clients/protocols.py).
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.failures import BatonError, DeadlineExceeded, Unavailable
from baton.wire.v1 import router_pb2
from services.gateway.clients.protocols import CallContext, RouterClient
from services.gateway.routing.prompt_keys import PromptKeys
from services.gateway.routing.quarantine_news import QuarantineNews

_WATCH_RETRY_S = 0.2
# How long a look at the fleet may take.
_LOOK_S = 0.5
# A time on every event loop's clock that is over.
_AT_ONCE = float("-inf")
# The least share of the ready workers of a model that a router knows which is asked.
_MIN_KNOWN_SHARE = 0.9

_log = logs.get("routers")


class Routers:
    """All routers of one fleet, by their addresses. `run` follows them until cancelled; `on_models`
    gets the fleet's models whenever a router has sent its view."""

    def __init__(
        self,
        routers: Mapping[str, RouterClient],
        clock: Clock,
        rng: random.Random,
        on_models: Callable[[Sequence[router_pb2.ModelState]], None],
        pick_fallback: Callable[[router_pb2.PickRequest], router_pb2.PickResponse],
        zone: str = "",
    ) -> None:
        assert routers, "at least one router"
        self._routers = routers
        self._clock = clock
        self._rng = rng
        self._on_models = on_models
        self._pick_fallback = pick_fallback
        # This gateway's zone and those of the routers that speak; empty = not known.
        self._zone = zone
        self._zones: dict[str, str] = {}
        # The models, by fingerprint, of each router that speaks.
        self._views: dict[str, dict[str, router_pb2.ModelState]] = {}
        # The number of each model's ready workers in each of these views.
        self._num_ready: dict[str, Counter[str]] = {}
        self._keys = PromptKeys()
        self._quarantined = QuarantineNews(clock)
        # Ends a request of a tenant that another gateway was asked to end.
        self.on_cancelled: Callable[[str, str], object] = _has_none
        # The timeouts of the picks that wait at each router; due when it speaks no more.
        self._waits: dict[str, set[asyncio.Timeout]] = {address: set() for address in routers}

    @property
    def is_any_heard(self) -> bool:
        """True when at least one router speaks."""
        return bool(self._views)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for address in self._routers:
                tasks.create_task(self._follow(address))

    def in_order(self, model_fp: str, key: bytes = b"") -> list[str]:
        """All routers, in the order in which a request with this key asks them."""
        most = max((counts[model_fp] for counts in self._num_ready.values()), default=0)
        least = max(1.0, _MIN_KNOWN_SHARE * most)
        return sorted(self._routers, key=lambda address: self._rank(address, model_fp, key, least))

    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        """Ask the prompt's router, then each next one, for a pick; without any, pick from the last
        view. Raises BatonError."""
        ends_s = self._clock.now() + context.deadline_s
        key = self._keys.key(request) if len(self._routers) > 1 else b""
        for address in self.in_order(request.model_fp, key):
            left_s = ends_s - self._clock.now()
            if left_s <= 0:
                raise DeadlineExceeded("no router answered in time")
            try:
                if self._quarantined.has_entries:
                    self._quarantined.attach(address, request)
                within = CallContext(context.request_id, left_s, context.traceparent)
                return await self._ask(address, request, within)
            except BatonError as error:
                if error.reason != "unavailable":
                    raise
                _log.info("pick_repeated", request_id=context.request_id, router=address)
        return self._pick_fallback(request)

    async def cancel(self, request: router_pb2.CancelRequest, context: CallContext) -> None:
        """Let one of them tell all gateways to end a request. Raises BatonError."""
        for address in self.in_order(""):
            try:
                return await self._routers[address].cancel(request, context)
            except BatonError as error:
                if error.reason != "unavailable":
                    raise
        raise Unavailable("no router answers", retry_after_s=1)

    async def look(self) -> Sequence[router_pb2.ModelState]:
        """The fleet as a router sees it now: what they told last of a worker's load may be seconds
        old. Empty when none answers in a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                for address in self.in_order(""):
                    views = self._routers[address].watch_admission()
                    async with contextlib.aclosing(views):
                        with contextlib.suppress(BatonError):
                            async for view in views:
                                return view.models
        return ()

    async def _ask(
        self, address: str, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        """Ask one router for a pick. Raises BatonError: Unavailable when it speaks no more."""
        waits = self._waits[address]
        try:
            async with asyncio.timeout(None) as wait:
                waits.add(wait)
                try:
                    return await self._routers[address].pick(request, context)
                finally:
                    waits.discard(wait)
        except TimeoutError:
            raise Unavailable("the router is silent") from None

    def _rank(
        self, address: str, model_fp: str, key: bytes, least_known: float
    ) -> tuple[bool, bool, bool, bytes]:
        """The sort key of a router, which should know `least_known` ready workers of the model."""
        counts = self._num_ready.get(address)
        knows_enough = counts is not None and counts[model_fp] >= least_known
        # The rendezvous hash of router, model and key; the lowest wins.
        drawn = blake2b(f"{address} {model_fp} ".encode() + key, digest_size=8).digest()
        is_elsewhere = bool(self._zone) and self._zones.get(address) != self._zone
        return not knows_enough, counts is None, is_elsewhere, drawn

    async def _follow(self, address: str) -> None:
        """Keep one router's view. Its last one is forgotten when it stops speaking, unless no other
        router speaks."""
        while True:
            try:
                models: dict[str, router_pb2.ModelState] = {}
                number = 0
                async for view in self._routers[address].watch_admission():
                    if view.is_delta and view.number != number + 1:
                        raise Unavailable("a view of the router is missing")
                    number = view.number
                    models = _taken_in(view, models)
                    self._views[address] = models
                    self._num_ready[address] = _count_ready(models.values())
                    self._zones[address] = view.zone
                    self._quarantined.hear(address, view)
                    self._on_models(self._models())
                    for each in view.cancelled:
                        self.on_cancelled(each.request_id, each.tenant)
                reason = "ended"
            except BatonError as error:
                reason = error.reason
            self._quarantined.lose(address)
            self._num_ready.pop(address, None)
            if self._views.pop(address, None) is not None:
                _log.warning("router_lost", router=address, reason=reason)
                for wait in self._waits[address]:
                    wait.reschedule(_AT_ONCE)
                if self._views:
                    self._on_models(self._models())
            await asyncio.sleep(_WATCH_RETRY_S * (0.5 + self._rng.random()))

    def _models(self) -> list[router_pb2.ModelState]:
        """Every model that some router knows, as the first one in its order sees it."""
        known = sorted({model_fp for view in self._views.values() for model_fp in view})
        return [
            next(
                self._views[address][model_fp]
                for address in self.in_order(model_fp)
                if model_fp in self._views.get(address, {})
            )
            for model_fp in known
        ]


def _has_none(request_id: str, tenant: str) -> None:
    """Do nothing: no request runs here."""


def _taken_in(
    view: router_pb2.WatchAdmissionResponse, known: Mapping[str, router_pb2.ModelState]
) -> dict[str, router_pb2.ModelState]:
    """The models by fingerprint after this view; `known` are those before it, and stay as they
    are. Raises Unavailable for a change of what is not known."""
    if not view.is_delta:
        return {model.model_fp: model for model in view.models}
    models = dict(known)
    for change in view.models:
        if change.model_fp not in known:
            raise Unavailable("the router tells a change of an unknown model")
        models[change.model_fp] = _changed(known[change.model_fp], change)
    return models


def _changed(known: router_pb2.ModelState, change: router_pb2.ModelState) -> router_pb2.ModelState:
    model = router_pb2.ModelState()
    model.CopyFrom(known)
    model.num_queued = change.num_queued
    model.predicted_wait_s[:] = change.predicted_wait_s
    model.prefill_tokens_per_s = change.prefill_tokens_per_s
    if change.workers:
        workers = {worker.worker_id: worker for worker in model.workers}
        for worker in change.workers:
            if worker.worker_id not in workers:
                raise Unavailable("the router tells a change of an unknown worker")
            workers[worker.worker_id].CopyFrom(worker)
    return model


def _count_ready(models: Iterable[router_pb2.ModelState]) -> Counter[str]:
    """The number of ready workers by the fingerprint of their model."""
    return Counter({m.model_fp: sum(worker.ready for worker in m.workers) for m in models})
