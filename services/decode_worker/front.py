"""The decode worker's domain: serves gateways, and drains.

Knows no grpc and no torch; streams, dialling, clock and randomness are passed in.
"""

from collections.abc import Coroutine, Iterable, Iterator

from baton.system.violation import Violation
from baton.worker.deps import WorkerDeps
from baton.worker.front import WorkerFront
from services.decode_worker.gateway_link import GatewayStream
from services.decode_worker.gateways import Gateways
from services.decode_worker.prefill_hello import Dial


class DecodeFront(WorkerFront):
    """One decode worker."""

    def __init__(self, deps: WorkerDeps, dial: Dial) -> None:
        super().__init__(deps)
        self._gateways = Gateways(deps, dial, self.check_admission)

    @property
    def num_attempts(self) -> int:
        return self._gateways.num_attempts

    async def serve(self, stream: GatewayStream) -> None:
        """Serve one connection of a gateway until it ends."""
        await self._gateways.serve(stream)

    async def drain(self, limit_s: float) -> None:
        self._gateways.go_away(limit_s)
        await super().drain(limit_s)
        await self._gateways.close_links("draining")

    def check_integrity(self) -> None:
        """Asserts that sequences and transfers belong to open attempts, and to nothing else."""
        if self.num_attempts == 0:
            assert self._deps.dispatcher.num_open == 0
            assert self._gateways.num_transfers == 0

    def violations(self) -> Iterator[Violation]:
        """Sequences and transfers that no attempt owns, and attempts that cannot end."""
        owners = self._gateways.open_request_ids()
        for seq_id, request_id in self._deps.dispatcher.open_sequences():
            if request_id not in owners:
                yield Violation("sequence_without_attempt", request_id, f"sequence {seq_id}")
        yield from self._gateways.violations()

    def _background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        return self._gateways.background_tasks()

    def _core_stalled(self) -> None:
        self._gateways.core_stalled()

    def _core_died(self, suspect_request_ids: tuple[str, ...]) -> None:
        self._gateways.core_died(suspect_request_ids)

    async def _wait_until_idle(self) -> None:
        await self._gateways.wait_until_idle()

    def _drain_cut_short(self) -> None:
        self._gateways.drain_cut_short()

    async def _finish_streams(self, reason: str) -> None:
        await self._gateways.finish_streams(reason)
