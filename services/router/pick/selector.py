"""One try to pick workers for one request: the views of the fleet, the pick, its slot leases.

Stands between the queue, which knows only waiting, and the picker, which knows only figures.
Decides where the prompt may be computed, when further waiting is pointless, and which worker is
reserved for the first request in line.
"""

from collections.abc import Mapping
from random import Random

from baton.system.clock import Clock
from baton.wire.failures import InvalidRequest, ModelNotFound, Overloaded, Unavailable
from baton.wire.pick_reasons import text_of
from baton.wire.v1 import router_pb2
from services.router import instruments
from services.router.fleet import stand_ins
from services.router.fleet.report_intake import ReportIntake
from services.router.fleet.reported import DECODE, PREFILL
from services.router.fleet.views import Demand, Policy, PrefillMode, Unfit, WorkerView
from services.router.fleet.worker import SlotLease, Worker
from services.router.pick import engines, kept_room, prefill_backlog
from services.router.pick.costs import uncached_tokens
from services.router.pick.head_of_line import ReservedWorkers
from services.router.pick.large_pools import CachedPrompt, LargePools, ShortPool, ShortPools
from services.router.pick.on_the_way import (
    STRIDE_TOKENS,
    PromptsOnTheWay,
    SentMarks,
    SentPrompt,
)
from services.router.pick.pick_request import PickRequest
from services.router.pick.picker import NoPick, Obstacle, Pick, pick
from services.router.pick.placement import Placement
from services.router.pick.reasons import Reasons
from services.router.pick.replaced import check_not_replaced
from services.router.pick.sessions import Sessions
from services.router.pick.shortlist import MAX_PLAIN
from services.router.settings import Settings

# A pick within so much of a request's arrival did not wait in line.
_ON_ARRIVAL_S = 0.01


class Selector:
    """Picks workers of the fleet for requests; synchronous."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        random: Random,
        intake: ReportIntake,
        reserved: ReservedWorkers,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        self._fleet = fleet = intake.fleet
        self._intake = intake
        self._policy = Policy.of(settings, fleet.links)
        self._large_pools = LargePools(settings, clock, random, fleet, self._policy)
        # The time since which picks for a model have found no worker.
        self._no_worker_since: dict[str, float] = {}
        self._reserved = reserved
        self._on_the_way = PromptsOnTheWay(clock)
        self.sessions = Sessions()

    def is_known(self, model_fp: str) -> bool:
        """Return whether a worker has registered this model, ready or not."""
        return model_fp in self._fleet.models

    def reserved(self, model_fp: str) -> str:
        """The id of the worker that is reserved for the first request in line; empty = none."""
        return self._reserved.of_model(model_fp) or ""

    def expect(self, sent: SentMarks) -> None:
        """Count on the blocks of a prompt that a peer has sent to a worker."""
        self._on_the_way.expect(sent)

    def name(self, request: PickRequest) -> str:
        """The model's name for metrics: never a string from a client."""
        model = self._fleet.models.get(request.model_fp)
        return model.name if model else "unknown"

    def follow_fleet(self) -> None:
        """Forget models that are not in the fleet."""
        for model_fp in self._no_worker_since.keys() - self._fleet.models.keys():
            del self._no_worker_since[model_fp]
        self._reserved.follow(self._fleet.models.keys())

    def attempt(
        self, request: PickRequest, is_first: bool, leaves_room: bool, is_quiet: bool
    ) -> Placement | None:
        """Pick workers for a request that is the first in line or passes it; None = let it wait,
        also where it `leaves_room` for others. One that `is_quiet` finds room in full batches.

        Raises ModelNotFound, InvalidRequest (it never fits), Unavailable (no_worker) and Overloaded
        (its first token would come too late) when further waiting is pointless.
        """
        if not self.is_known(request.model_fp):
            self._wait_for_unknown(request)
            return None
        if not self._fleet.has_met_all():
            return None
        if request.is_picky:
            engines.check_served(self._fleet, request)
        reserved = None if is_first else self._reserved.of_model(request.model_fp)
        outcome = self._pick(request, reserved, is_quiet)
        if is_first:
            self._reserve(request, outcome)
        if isinstance(outcome, Pick):
            self._check_due(request, outcome)
            if leaves_room and not self._leaves_room(request):
                return None
            if self._lacks_prefill(request, outcome, leaves_room):
                return None
            self._no_worker_since.pop(request.model_fp, None)
            leases = self._take_leases(request, outcome)
            if request.session:
                worker_ids = [worker_id for worker_id, _ in leases]
                self.sessions.note(request.model_fp, request.session, worker_ids)
            return Placement(
                self._response(request, outcome),
                outcome.engine_s,
                leases,
                self._expect_blocks(request, outcome),
            )
        if outcome.obstacle is Obstacle.NO_WORKER:
            self._wait_for_worker(request, outcome)
            return None
        self._no_worker_since.pop(request.model_fp, None)
        if outcome.obstacle is Obstacle.TOO_LARGE:
            raise _too_large(request)
        return None

    def first_token_s(self, request: PickRequest) -> float:
        """Predict the seconds from the request's pick to its first token; 0 = not known."""
        return self._pick(request, None).first_token_s if self.is_known(request.model_fp) else 0.0

    def _leaves_room(self, request: PickRequest) -> bool:
        """Return whether there is room for others beside this request. One with several choices,
        for which room is gathered on one worker, is not asked."""
        return request.num_choices > 1 or kept_room.is_left(self._fleet, request.model_fp)

    def _lacks_prefill(self, request: PickRequest, picked: Pick, leaves_room: bool) -> bool:
        """Return whether the prompt waits here rather than in a worker's queue. That of a stream
        which has begun goes before all."""
        computing = picked.prefill or picked.decode
        most_s = prefill_backlog.SHARED_BACKLOG_S if leaves_room else prefill_backlog.BACKLOG_S
        most_tokens = most_s * computing.speed.prefill_tokens_per_s
        if request.has_begun or not computing.speed.is_measured:
            return False
        if computing.num_queued_prefill_tokens <= most_tokens:
            return False
        role = self._fleet.find(computing.worker_id).registration.role
        return prefill_backlog.least_tokens(self._fleet, request.model_fp, role) > most_tokens

    def _check_due(self, request: PickRequest, picked: Pick) -> None:
        """Raise Overloaded rather than spend prefill on a first token that would come too late.

        An idle worker may try, and measures its rate anew: nobody waits behind the request.
        """
        now = self._clock.now()
        computing = picked.prefill or picked.decode
        has_waited = now - request.arrived_at > _ON_ARRIVAL_S
        may_try = not has_waited and not computing.num_queued_prefill_tokens
        if now + picked.first_token_s > request.due_at and not may_try:
            raise Overloaded(
                f"the first token is due in {request.due_at - now:.3g} s and would come in "
                f"{picked.first_token_s:.3g} s",
                retry_after_s=max(1.0, now - request.arrived_at + picked.first_token_s),
            )

    def _reserve(self, request: PickRequest, outcome: Pick | NoPick) -> None:
        if isinstance(outcome, NoPick) and outcome.full:
            self._reserved.reserve(request.model_fp, request.request_id, outcome.full)
        else:
            self._reserved.end(request.model_fp)

    def _wait_for_unknown(self, request: PickRequest) -> None:
        """Let the request wait while workers that have not registered yet may serve its model."""
        if self._fleet.is_settled():
            raise ModelNotFound("no worker serves this model", param="model")
        self._check_patience(request.arrived_at, None)

    def _wait_for_worker(self, request: PickRequest, outcome: NoPick) -> None:
        check_not_replaced(self._fleet, request)
        now = self._clock.now()
        since = self._no_worker_since.setdefault(request.model_fp, now)
        self._check_patience(max(since, request.arrived_at), outcome.reasons)

    def _check_patience(self, since: float, reasons: Reasons | None) -> None:
        """Raise Unavailable when a request has waited long enough for a first worker."""
        wait_s = self._settings.no_worker_wait_s
        if self._clock.now() - since >= wait_s:
            why = "no worker has registered this model"
            if reasons is not None:
                why = text_of(reasons.to_wire()) or "none is known"
            raise Unavailable(
                f"no worker is ready for this model: {why}",
                reason="no_worker",
                retry_after_s=wait_s,
            )

    def _session_workers(self, request: PickRequest) -> frozenset[str]:
        """The workers that served the request's session last."""
        if not request.session:
            return frozenset()
        return self.sessions.workers(request.model_fp, request.session)

    def _pick(
        self, request: PickRequest, reserved: str | None, is_quiet: bool = False
    ) -> Pick | NoPick:
        """Pick a pair for the request, which must not take the `reserved` decode worker."""
        isolated = self._fleet.is_isolated()
        decode_role = stand_ins.decoding_role(self._fleet, request.model_fp, isolated=isolated)
        stand_in = decode_role == PREFILL
        decodes = self._fleet.of_model(request.model_fp, decode_role)
        prefills = self._fleet.of_model(request.model_fp, PREFILL)
        able = engines.with_adapter(prefills, request) if request.adapter else prefills
        mode, max_local_tokens = self._prefill_mode(able, isolated)
        if request.local_prefill or stand_in:
            mode, max_local_tokens = PrefillMode.LOCAL, None
        demand = Demand(
            request.num_prompt_tokens,
            request.expected_output_tokens,
            request.num_choices,
            mode,
            max_local_tokens,
            session=self._session_workers(request),
            is_quiet=is_quiet,
        )
        kept_away = self._kept_away(request, reserved)
        if stand_in:
            kept_away |= stand_ins.unable(self._fleet, request.model_fp)
        prompt = self._cached_prompt(request)
        pools = None
        if not isolated and max(len(decodes), len(prefills)) > MAX_PLAIN:
            roles = (decode_role, PREFILL)
            pools = self._large_pools.shorten(request.model_fp, roles, demand, prompt, kept_away)
        if pools is None:
            pools = self._whole_pools(request, prompt, decode_role)
        outcome = pick(
            demand._replace(others=pools.others),
            self._views(request, pools.decodes, isolated, kept_away),
            self._views(request, pools.prefills, isolated, kept_away),
            self._policy,
            self._random,
        )
        is_one_away = stand_in and bool(self._fleet.of_model(request.model_fp, DECODE))
        if is_one_away and isinstance(outcome, NoPick) and outcome.obstacle is Obstacle.TOO_LARGE:
            # For those that stand in; a decode worker that is away may be larger.
            return outcome._replace(obstacle=Obstacle.NO_WORKER)
        return outcome

    def _cached_prompt(self, request: PickRequest) -> CachedPrompt:
        block_size = self._fleet.models[request.model_fp].block_size
        coming: dict[str, int] = {}
        if request.num_prompt_tokens >= STRIDE_TOKENS:
            coming = self._on_the_way.match(request.hashes, block_size)
        return CachedPrompt(request.hashes, self._intake.index(request.model_fp), coming)

    def _whole_pools(
        self, request: PickRequest, prompt: CachedPrompt, decode_role: int
    ) -> ShortPools:
        """All workers of the model; those of `decode_role` decode."""
        cached_blocks = prompt.prefix_index.match(prompt.hashes)
        for endpoint, num_blocks in prompt.coming.items():
            cached_blocks[endpoint] = max(num_blocks, cached_blocks.get(endpoint, 0))

        def pool(role: int) -> ShortPool:
            workers = self._fleet.of_model(request.model_fp, role)
            cached = [cached_blocks.get(worker.endpoint, 0) for worker in workers]
            return ShortPool(workers, cached, self._fleet.speeds(request.model_fp, role))

        return ShortPools(pool(decode_role), pool(PREFILL))

    def _kept_away(self, request: PickRequest, reserved: str | None) -> dict[str, Unfit]:
        """The workers that this request must not get, whatever their state is."""
        kept_away = self._reserved.kept_away(
            request.model_fp, reserved, has_begun=request.has_begun
        )
        if request.is_picky:
            kept_away |= engines.lacking(self._fleet, request)
        for worker_id in request.excluded:
            worker = self._fleet.known(worker_id)
            if worker is not None and self._is_excluded(request, worker):
                kept_away[worker_id] = Unfit.EXCLUDED
        return kept_away

    def _views(
        self,
        request: PickRequest,
        pool: ShortPool,
        isolated: bool,
        kept_away: Mapping[str, Unfit],
    ) -> list[WorkerView]:
        views = []
        for worker, num_blocks in zip(pool.workers, pool.cached_blocks, strict=True):
            unfit = self._fleet.unfit(worker, isolated) or kept_away.get(worker.worker_id)
            num_tokens = num_blocks * worker.registration.model.block_size
            num_cached = min(num_tokens, request.num_prompt_tokens)
            views.append(self._fleet.view(worker, pool.speeds, unfit, num_cached))
        return views

    def _is_excluded(self, request: PickRequest, worker: Worker) -> bool:
        """A worker that refused the request gets it again after exclusion_s and a new report."""
        waited_s = self._clock.now() - request.arrived_at
        has_reported = worker.reported_at > request.arrived_at
        return waited_s < self._settings.exclusion_s or not has_reported

    def _prefill_mode(
        self, prefills: list[Worker], isolated: bool
    ) -> tuple[PrefillMode, int | None]:
        """Where prompts may be prefilled now, and the maximum of tokens for a local prefill."""
        if self._settings.disaggregate == "auto":
            return PrefillMode.EITHER, None
        if not prefills:
            # Without prefill workers the fleet is aggregated, once all have had time to register.
            return (PrefillMode.LOCAL if self._fleet.is_settled() else PrefillMode.REMOTE), None
        if any(self._fleet.is_fit(worker, isolated) for worker in prefills):
            return PrefillMode.REMOTE, None
        since = max(self._fleet.unfit_since(worker) for worker in prefills)
        if self._clock.now() - since < self._settings.local_prefill_after_s:
            return PrefillMode.REMOTE, None
        return PrefillMode.LOCAL, self._settings.local_prefill_max_tokens

    def _take_leases(self, request: PickRequest, picked: Pick) -> list[tuple[str, SlotLease]]:
        """Count the request on its workers until their reports show it; returns the leases by
        worker id."""
        leases, taken = [], []
        computing = picked.prefill or picked.decode
        for view in filter(None, (picked.decode, picked.prefill)):
            tokens = uncached_tokens(request.num_prompt_tokens, view) if view is computing else 0
            lease = SlotLease(
                request_id=request.request_id,
                num_sequences=request.num_choices,
                num_blocks=picked.num_decode_blocks if view is picked.decode else 0,
                num_prefill_tokens=tokens,
                expires_at=self._fleet.lease_end(),
            )
            leases.append((view.worker_id, lease))
            taken.append((self._fleet.find(view.worker_id), lease))
        self._fleet.take_leases(request.request_id, taken)
        return leases

    def _expect_blocks(self, request: PickRequest, picked: Pick) -> SentMarks | None:
        """Count on the prompt's blocks where they are going to be computed, if they are new."""
        view = picked.prefill or picked.decode
        num_tokens = uncached_tokens(request.num_prompt_tokens, view)
        block_size = view.shape.block_size
        if num_tokens < STRIDE_TOKENS:
            return None
        expected_s = (view.num_queued_prefill_tokens + num_tokens) / view.speed.prefill_tokens_per_s
        num_cached = view.num_cached_tokens // block_size
        endpoint = self._fleet.find(view.worker_id).endpoint
        prompt = SentPrompt(endpoint, request.hashes, num_cached, expected_s)
        return self._on_the_way.take(prompt, block_size)

    def _response(self, request: PickRequest, picked: Pick) -> router_pb2.PickResponse:
        computing = picked.prefill or picked.decode
        num_tokens = request.num_prompt_tokens
        num_cached = num_tokens - uncached_tokens(num_tokens, computing)
        name = self.name(request)
        instruments.ROUTER_PROMPT_TOKENS.labels(name).inc(num_tokens)
        instruments.ROUTER_PREDICTED_CACHED_TOKENS.labels(name).inc(num_cached)
        return router_pb2.PickResponse(
            decode=self._endpoint(picked.decode),
            prefill=self._endpoint(picked.prefill) if picked.prefill else None,
            reasons=picked.reasons.to_wire(),
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
    prompt = f"a prompt of {request.num_prompt_tokens} tokens"
    if request.num_choices == 1:
        return InvalidRequest(
            f"{prompt} does not fit on any worker",
            reason="context_length_exceeded",
            param="messages",
        )
    return InvalidRequest(
        f"{request.num_choices} choices for {prompt} do not fit on any worker together",
        reason="request_exceeds_limit",
        param="n",
    )
