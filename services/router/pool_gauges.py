"""The gauges of the pools: one series for each model name and role, over all revisions of the name.

The counters of a model name begin at 0 when the name appears, as a service's KNOWN_SERIES do with
its process. The gauges are not written at each report, which would cost the square of a pool's
size. All series of a name, counters too, end when the fleet has no model of that name.
"""

from collections.abc import Mapping

from baton.wire.v1 import router_pb2
from services.router import instruments
from services.router.fleet.fleet import Fleet
from services.router.fleet.health import Cause
from services.router.fleet.report_intake import ReportIntake
from services.router.fleet.reported import DECODE, PREFILL
from services.router.fleet.worker import Worker
from services.router.instruments import PickOutcome

_OF_NAME = (
    instruments.ROUTER_QUEUE_REQUESTS,
    instruments.ROUTER_QUEUE_SECONDS,
    instruments.ROUTER_PICKS,
    instruments.ROUTER_PROMPT_TOKENS,
    instruments.ROUTER_PREDICTED_CACHED_TOKENS,
    instruments.ROUTER_INDEX_HASHES,
    instruments.ROUTER_EJECTIONS,
)
_OF_POOL = (
    instruments.ROUTER_READY_WORKERS,
    instruments.ROUTER_QUEUED_PREFILL_TOKENS,
    instruments.ROUTER_QUEUED_PREFILL_SECONDS,
)


class PoolGauges:
    """Publishes figures of fleet and indexes, and ends the series of models that are gone."""

    def __init__(self, fleet: Fleet, intake: ReportIntake) -> None:
        self._fleet = fleet
        self._intake = intake
        self._names: set[str] = set()
        # By name and role.
        self._pools: set[tuple[str, str]] = set()

    def publish(self, num_queued: Mapping[str, int]) -> None:
        """Set all gauges to the state of now; `num_queued` is by model fingerprint."""
        revisions: dict[str, list[str]] = {}
        for model_fp, model in self._fleet.models.items():
            revisions.setdefault(model.name, []).append(model_fp)
        pools = set()
        for name, model_fps in revisions.items():
            for role in (PREFILL, DECODE):
                if any(self._fleet.of_model(model_fp, role) for model_fp in model_fps):
                    pools.add((name, _name_of(role)))
                    self._publish_pool(name, role, model_fps)
            num_hashes = sum(self._intake.index(model_fp).num_hashes for model_fp in model_fps)
            instruments.ROUTER_INDEX_HASHES.labels(name).set(num_hashes)
            num_waiting = sum(num_queued.get(model_fp, 0) for model_fp in model_fps)
            instruments.ROUTER_QUEUE_REQUESTS.labels(name).set(num_waiting)
        for name in revisions.keys() - self._names:
            _begin(name)
        self._end(set(revisions), pools)

    def _publish_pool(self, name: str, role: int, model_fps: list[str]) -> None:
        num_ready, num_tokens, per_s = 0, 0, 0.0
        for model_fp in model_fps:
            speeds = self._fleet.speeds(model_fp, role)
            for worker in self._ready(model_fp, role):
                num_ready += 1
                num_tokens += worker.load.num_queued_prefill_tokens
                per_s += speeds.of(worker.measured).prefill_tokens_per_s
        pool = (name, _name_of(role))
        instruments.ROUTER_READY_WORKERS.labels(*pool).set(num_ready)
        instruments.ROUTER_QUEUED_PREFILL_TOKENS.labels(*pool).set(num_tokens)
        instruments.ROUTER_QUEUED_PREFILL_SECONDS.labels(*pool).set(
            num_tokens / per_s if num_ready else 0.0
        )

    def _ready(self, model_fp: str, role: int) -> list[Worker]:
        pool = self._fleet.of_model(model_fp, role)
        return [worker for worker in pool if self._fleet.is_fit(worker)]

    def _end(self, names: set[str], pools: set[tuple[str, str]]) -> None:
        """End all series but these."""
        for pool in self._pools - pools:
            for gauge in _OF_POOL:
                gauge.remove(*pool)
        for name in self._names - names:
            for metric in _OF_NAME:
                metric.remove_by_labels({"model_name": name})
        self._names, self._pools = names, pools


def _begin(name: str) -> None:
    for outcome in (PickOutcome.PAIR, PickOutcome.LOCAL):
        instruments.ROUTER_PICKS.labels(name, outcome)
    for cause in Cause:
        instruments.ROUTER_EJECTIONS.labels(name, cause)


def _name_of(role: int) -> str:
    return router_pb2.WorkerRole.Name(role).removeprefix("WORKER_ROLE_").lower()
