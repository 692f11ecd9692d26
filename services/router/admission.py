"""The view that gateways get: each model, its workers, and how long a request would wait.

Builds WatchAdmission's messages from the fleet and the queues; decides nothing.
"""

from baton.wire.v1 import router_pb2
from services.router.fleet.fleet import Fleet
from services.router.fleet.health import HealthState
from services.router.fleet.reported import DECODE, PREFILL, ServedModel
from services.router.fleet.worker import Worker


class AdmissionView:
    """Builds the view of the fleet: the workers' part once for all gateways of one moment."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._moment: tuple[int, int] | None = None
        self._models: list[router_pb2.ModelState] = []

    def response(
        self, num_queued: dict[str, int], queue_wait_s: dict[str, float]
    ) -> router_pb2.WatchAdmissionResponse:
        """Return the view; `num_queued` and `queue_wait_s` are by model fingerprint."""
        if self._moment != self._fleet.moment():
            self._moment = self._fleet.moment()
            self._models = [self._model_state(m) for _, m in sorted(self._fleet.models.items())]
        view = router_pb2.WatchAdmissionResponse(models=self._models)
        for model in view.models:
            model.num_queued = num_queued.get(model.model_fp, 0)
            model.predicted_wait_s[0] += queue_wait_s.get(model.model_fp, 0.0)
        return view

    def _model_state(self, model: ServedModel) -> router_pb2.ModelState:
        """The model's state without its queue."""
        decodes = self._fleet.of_model(model.fp, DECODE)
        prefills = self._fleet.of_model(model.fp, PREFILL)
        return router_pb2.ModelState(
            model_fp=model.fp,
            name=model.name,
            revision=model.revision,
            block_size=model.block_size,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            workers=[self._worker_state(worker) for worker in decodes + prefills],
            predicted_wait_s=[self._prefill_wait_s(model, prefills or decodes)],
            prefill_tokens_per_s=self._fleet.prefill_tokens_per_s(model.fp),
        )

    def _prefill_wait_s(self, model: ServedModel, pool: list[Worker]) -> float:
        """Seconds of queued prefill on the ready worker that has the fewest; 0 without one."""
        if not pool:
            return 0.0
        speeds = self._fleet.speeds(model.fp, pool[0].registration.role)
        waits = (
            self._fleet.num_queued_prefill_tokens(worker)
            / speeds.of(worker.measured).prefill_tokens_per_s
            for worker in pool
            if self._is_ready(worker)
        )
        return min(waits, default=0.0)

    def _worker_state(self, worker: Worker) -> router_pb2.WorkerState:
        num_blocks = worker.registration.num_blocks
        return router_pb2.WorkerState(
            worker_id=worker.worker_id,
            endpoint=worker.endpoint,
            role=worker.registration.role,
            ready=self._is_ready(worker),
            ejected=worker.health.state is HealthState.EJECTED,
            draining=worker.draining,
            num_running=worker.load.num_running,
            num_waiting=worker.load.num_waiting,
            kv_usage=1 - worker.load.num_blocks_free / num_blocks,
            totals=worker.load.totals,
        )

    def _is_ready(self, worker: Worker) -> bool:
        return self._fleet.is_fit(worker)
