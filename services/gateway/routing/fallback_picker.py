"""Picks without a router, from the workers that could take a request in the last view of one.

The view may be old, so this gateway's own knowledge decides: workers whose link is lost or closed
to new attempts come last, and of two drawn at random the one with fewer attempts of this gateway
wins. Such a pick has no prefill worker, since the pools' rates are not known here; who decodes
prefills, too. Their admission is the authority, as ever.
"""

import random
from collections.abc import Callable

from baton.runtime import logs
from baton.wire.failures import Unavailable
from baton.wire.limits import MAX_DEATHS
from baton.wire.v1 import router_pb2
from services.gateway import instruments
from services.gateway.routing.ready_workers import ReadyWorkers

_NUM_DRAWN = 2

_log = logs.get("last_view")


class FallbackPicker:
    """Picks from the workers that were ready last. `num_open(worker_id)`: the attempts of this
    gateway on a worker, None when it takes no new ones."""

    def __init__(
        self, rng: random.Random, ready: ReadyWorkers, num_open: Callable[[str], int | None]
    ) -> None:
        self._rng = rng
        self._ready = ready
        self._num_open = num_open

    def pick(self, request: router_pb2.PickRequest) -> router_pb2.PickResponse:
        """A worker, chosen without a router. Raises Unavailable."""
        ready = self._ready.of(request.model_fp, request.adapter)
        fit = [w for w in ready if self._num_open(w.worker_id) is not None]
        others = [w for w in fit if w.worker_id not in request.exclude_worker_ids]
        # Only a router's quarantine keeps a request that kills cores away from them.
        if not ready or request.num_deaths >= MAX_DEATHS:
            raise Unavailable("no router answers", reason="overloaded", retry_after_s=1)
        best_known = others or fit or ready
        drawn = self._rng.sample(best_known, min(_NUM_DRAWN, len(best_known)))
        best = min(drawn, key=lambda worker: self._num_open(worker.worker_id) or 0)
        instruments.GATEWAY_FALLBACK_PICKS.inc()
        _log.info("picked_alone", request_id=request.request_id, worker_id=best.worker_id)
        return router_pb2.PickResponse(
            decode=router_pb2.WorkerEndpoint(worker_id=best.worker_id, endpoint=best.endpoint),
            reasons=router_pb2.PickReasons(
                remark=f"no router answers: of {len(best_known)} drawn "
                + ", ".join(f"{w.worker_id}={self._num_open(w.worker_id)}" for w in drawn)
            ),
        )
