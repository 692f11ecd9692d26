"""One attempt to place one request: what the fleet looks like for it, the pick, and what follows.

Between the queue, which knows only waiting, and the picker, which knows only figures: decides
where the prompt may be computed, when waiting has become pointless, which worker is kept for the
first in line, and takes the slot leases of the chosen pair.
"""

from dataclasses import dataclass
from random import Random
from typing import Self

from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest, ModelNotFound, Unavailable
from baton.wire.limits import MAX_CHOICES
from baton.wire.v1 import router_pb2
from services.router import instruments
from services.router.fleet import Fleet, Worker
from services.router.head_of_line import ReservedWorkers
from services.router.picker import (
    Demand,
    NoPick,
    Pick,
    Policy,
    PrefillMode,
    WorkerView,
    pick,
)
from services.router.report_intake import ReportIntake, hashes_of
from services.router.reported import DECODE, PREFILL
from services.router.settings import Settings
from services.router.slot_lease import SlotLease

MAX_PROMPT_TOKENS = 1 << 24
# A prompt that is so many times shorter is worth a look at blocks of its own.
_MUCH = 2


@dataclass(frozen=True, slots=True)
class PickRequest:
    """One request as it came from the gateway, checked."""

    request_id: str
    model_fp: str
    hashes: list[bytes]
    num_prompt_tokens: int
    expected_output_tokens: int
    num_choices: int
    local_prefill: bool
    excluded: frozenset[str]
    arrived_at: float

    @classmethod
    def of(cls, request: router_pb2.PickRequest, now: float) -> Self:
        """Raises InvalidRequest for figures that no real request has."""
        if not 0 < request.num_prompt_tokens <= MAX_PROMPT_TOKENS:
            raise InvalidRequest(
                f"num_prompt_tokens {request.num_prompt_tokens} is not in 1..{MAX_PROMPT_TOKENS}",
                param="num_prompt_tokens",
            )
        if request.num_choices > MAX_CHOICES:
            raise InvalidRequest(
                f"num_choices {request.num_choices} is over {MAX_CHOICES}", param="n"
            )
        return cls(
            request_id=request.request_id,
            model_fp=request.model_fp,
            hashes=hashes_of(request.block_hashes)[: request.num_prompt_tokens],
            num_prompt_tokens=request.num_prompt_tokens,
            expected_output_tokens=min(request.expected_output_tokens, MAX_PROMPT_TOKENS),
            num_choices=max(1, request.num_choices),
            local_prefill=request.local_prefill,
            excluded=frozenset(request.exclude_worker_ids),
            arrived_at=now,
        )

    def covers(self, other: Self) -> bool:
        """Whether `other` needs as much, or nearly, and nothing else: where this one finds no room,
        it is of no use to look for its."""
        return (
            self.model_fp == other.model_fp
            and self.num_choices <= other.num_choices
            and self.num_prompt_tokens <= _MUCH * other.num_prompt_tokens
            and self.excluded <= other.excluded
            and self.local_prefill >= other.local_prefill
        )


class Selector:
    """Places requests on the fleet; synchronous."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        random: Random,
        fleet: Fleet,
        intake: ReportIntake,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self._fleet = fleet
        self._intake = intake
        self._policy = Policy(
            itl_weight=settings.itl_weight,
            batch_doubling=settings.batch_doubling,
            promise_cap=settings.promise_cap,
            growth_blocks=settings.growth_blocks,
        )
        # Since when attempts for a model have found no worker.
        self._no_worker_since: dict[str, float] = {}
        self._reserved = ReservedWorkers(clock)

    def is_known(self, model_fp: str) -> bool:
        """Some worker has named this model, whether it is ready or not."""
        return model_fp in self._fleet.models

    def name(self, request: PickRequest) -> str:
        """The model's name for metrics: never what a client chose."""
        model = self._fleet.models.get(request.model_fp)
        return model.name if model else "unknown"

    def follow_fleet(self) -> None:
        """Remember nothing of models that are not in the fleet."""
        for model_fp in self._no_worker_since.keys() - self._fleet.models.keys():
            del self._no_worker_since[model_fp]
        self._reserved.follow(self._fleet.models.keys())

    def attempt(
        self, request: PickRequest, is_first: bool = True
    ) -> router_pb2.PickResponse | None:
        """Place the request, which is the first in line or passes that one; None = it should wait.

        Raises ModelNotFound, InvalidRequest (it never fits) and Unavailable (no_worker) when
        waiting longer is pointless.
        """
        if not self.is_known(request.model_fp):
            self._wait_for_unknown(request)
            return None
        outcome = self._pick(request, "" if is_first else self._reserved.of_model(request.model_fp))
        if is_first:
            self._reserve(request, outcome)
        if isinstance(outcome, Pick):
            self._no_worker_since.pop(request.model_fp, None)
            self._take_leases(request, outcome)
            return self._response(request, outcome)
        if outcome.kind == "no_worker":
            self._wait_for_worker(request, outcome)
            return None
        self._no_worker_since.pop(request.model_fp, None)
        if outcome.kind == "too_large":
            raise _too_large(request)
        return None

    def _reserve(self, request: PickRequest, outcome: Pick | NoPick) -> None:
        if isinstance(outcome, NoPick) and outcome.full:
            self._reserved.reserve(request.model_fp, request.request_id, outcome.full)
        else:
            self._reserved.end(request.model_fp)

    def _wait_for_unknown(self, request: PickRequest) -> None:
        """Workers that did not report since this router started may serve this model."""
        if self._fleet.is_settled():
            raise ModelNotFound("no worker serves this model", param="model")
        self._give_up_after(request, request.arrived_at, "no worker has registered this model")

    def _wait_for_worker(self, request: PickRequest, outcome: NoPick) -> None:
        now = self._clock.now()
        since = self._no_worker_since.setdefault(request.model_fp, now)
        self._give_up_after(request, max(since, request.arrived_at), outcome.reasons)

    def _give_up_after(self, request: PickRequest, since: float, reasons: str) -> None:
        wait_s = self._settings.no_worker_wait_s
        if self._clock.now() - since >= wait_s:
            raise Unavailable(
                f"no worker is ready for this model: {reasons or 'none is known'}",
                reason="no_worker",
                retry_after_s=wait_s,
            )

    def _pick(self, request: PickRequest, reserved: str) -> Pick | NoPick:
        """`kept` is the decode worker that it must leave alone."""
        decodes = self._fleet.of_model(request.model_fp, DECODE)
        prefills = self._fleet.of_model(request.model_fp, PREFILL)
        isolated = self._fleet.is_isolated()
        mode, max_local_tokens = self._prefill_mode(prefills, isolated)
        if request.local_prefill:
            mode, max_local_tokens = PrefillMode.LOCAL, None
        demand = Demand(
            num_prompt_tokens=request.num_prompt_tokens,
            expected_output_tokens=request.expected_output_tokens,
            num_choices=request.num_choices,
            mode=mode,
            max_local_tokens=max_local_tokens,
        )
        num_cached_blocks = self._intake.index(request.model_fp).match(request.hashes)
        return pick(
            demand,
            self._views(request, decodes, num_cached_blocks, isolated, reserved),
            self._views(request, prefills, num_cached_blocks, isolated),
            self._policy,
            self._random,
        )

    def _views(
        self,
        request: PickRequest,
        pool: list[Worker],
        num_cached_blocks: dict[str, int],
        isolated: bool,
        reserved: str = "",
    ) -> list[WorkerView]:
        if not pool:
            return []
        registration = pool[0].registration
        speeds = self._fleet.speeds(registration.model.fp, registration.role)
        views = []
        for worker in pool:
            unfit = self._fleet.unfit(worker, isolated)
            if not unfit and self._is_excluded(request, worker):
                unfit = "excluded"
            if not unfit and worker.worker_id == reserved:
                unfit = "kept"
            num_blocks = num_cached_blocks.get(worker.endpoint, 0)
            num_cached_tokens = num_blocks * worker.registration.model.block_size
            views.append(
                self._fleet.view(
                    worker, speeds, unfit, min(num_cached_tokens, request.num_prompt_tokens)
                )
            )
        return views

    def _is_excluded(self, request: PickRequest, worker: Worker) -> bool:
        """A worker that refused a request gets it again only after a while and a fresh report."""
        if worker.worker_id not in request.excluded:
            return False
        waited_s = self._clock.now() - request.arrived_at
        has_reported = worker.reported_at > request.arrived_at
        return waited_s < self._settings.exclusion_s or not has_reported

    def _prefill_mode(
        self, prefills: list[Worker], isolated: bool
    ) -> tuple[PrefillMode, int | None]:
        """Where prompts may be computed now, and how long a local one may be."""
        if self._settings.disaggregate == "auto":
            return PrefillMode.EITHER, None
        if not prefills:
            # Decode workers alone are an aggregated fleet, once all had time to register.
            return (PrefillMode.LOCAL if self._fleet.is_settled() else PrefillMode.REMOTE), None
        if any(not self._fleet.unfit(worker, isolated) for worker in prefills):
            return PrefillMode.REMOTE, None
        since = max(self._fleet.unfit_since(worker) for worker in prefills)
        if self._clock.now() - since < self._settings.local_prefill_after_s:
            return PrefillMode.REMOTE, None
        return PrefillMode.LOCAL, self._settings.local_prefill_max_tokens

    def _take_leases(self, request: PickRequest, picked: Pick) -> None:
        """Count the request on its workers until their reports do."""
        expires_at = self._clock.now() + self._settings.slot_lease_s
        computing = picked.prefill or picked.decode
        for view in filter(None, (picked.decode, picked.prefill)):
            tokens = view.missing_tokens(request.num_prompt_tokens) if view is computing else 0
            self._fleet.find(view.worker_id).leases.take(
                SlotLease(
                    request_id=request.request_id,
                    num_sequences=request.num_choices,
                    num_blocks=picked.num_decode_blocks if view is picked.decode else 0,
                    num_prefill_tokens=tokens,
                    expires_at=expires_at,
                )
            )

    def _response(self, request: PickRequest, picked: Pick) -> router_pb2.PickResponse:
        computing = picked.prefill or picked.decode
        num_cached = request.num_prompt_tokens - computing.missing_tokens(request.num_prompt_tokens)
        name = self.name(request)
        instruments.ROUTER_PROMPT_TOKENS.labels(name).inc(request.num_prompt_tokens)
        instruments.ROUTER_PREDICTED_CACHED_TOKENS.labels(name).inc(num_cached)
        return router_pb2.PickResponse(
            decode=self._endpoint(picked.decode),
            prefill=self._endpoint(picked.prefill) if picked.prefill else None,
            reasons=picked.reasons,
            predicted_cached_tokens=num_cached,
        )

    def _endpoint(self, view: WorkerView) -> router_pb2.WorkerEndpoint:
        worker = self._fleet.find(view.worker_id)
        return router_pb2.WorkerEndpoint(
            worker_id=worker.worker_id,
            endpoint=worker.endpoint,
            boot_epoch=worker.registration.boot_epoch,
        )


def _too_large(request: PickRequest) -> InvalidRequest:
    tokens = f"a prompt of {request.num_prompt_tokens} tokens"
    if request.num_choices == 1:
        reason, param, message = (
            "context_length_exceeded",
            "messages",
            f"{tokens} fits on no worker",
        )
    else:
        reason, param = "request_exceeds_limit", "n"
        message = f"{request.num_choices} choices for {tokens} fit on no worker together"
    return InvalidRequest(message, reason=reason, param=param)
