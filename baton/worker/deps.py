"""The dependencies of a front; `program.py` makes one set per process, tests make their own."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.negotiation import Transports
from baton.system.clock import Clock
from baton.worker.adapters import AdapterFolder
from baton.worker.core_watch import CoreWatch
from baton.worker.dispatch import EngineDispatcher
from baton.worker.grammar_gate import GrammarGate
from baton.worker.metrics import WorkerMetrics
from baton.worker.reports import ReportLog


@dataclass(frozen=True)
class WorkerDeps:
    """One worker's engine, pool view and surroundings. A record: each front takes what it needs."""

    worker_id: str
    # Differs in every life of this worker.
    boot_epoch: int
    dispatcher: EngineDispatcher
    watch: CoreWatch
    blocks: BlockBytes
    transports: Transports
    reports: ReportLog
    metrics: WorkerMetrics
    grammar_gate: GrammarGate
    clock: Clock
    # Unguessable bytes, for capabilities.
    random_bytes: Callable[[int], bytes]
    # Requests of the step in which this worker's last life ended, core and front together.
    last_suspects: tuple[str, ...] = ()
    # None = this worker serves none.
    adapters: AdapterFolder | None = None
