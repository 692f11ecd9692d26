"""Which transfers count as left hanging: those that are the peer's turn, on a silent link."""

import asyncio

import pytest

from baton.handoff.ticket import LEASE_S, Ticket
from baton.testing.virtual_clock import run_virtual
from baton.wire.v1 import handoff_pb2, router_pb2
from baton.worker.deps import WorkerDeps
from services.decode_worker.delivery_watch import DeliveryWatch
from services.decode_worker.incoming_transfer import IncomingTransfer, PrefillRequest
from tests.unit.worker.scripted_core import make_worker, turns


class World:
    def __init__(self) -> None:
        self.deps: WorkerDeps
        _, self.deps = make_worker("decode-1", router_pb2.WORKER_ROLE_DECODE)
        self.watch = DeliveryWatch(self.deps.clock)
        self.transfers: list[IncomingTransfer] = []

    async def open(self, *, is_computed: bool = True, is_bound: bool = True) -> IncomingTransfer:
        ticket = Ticket(len(self.transfers) + 1, "r1", 1, b"c" * 16, 0, 3)
        request = PrefillRequest(ticket, handoff_pb2.Prefill(), b"", b"")
        transfer = IncomingTransfer(request, self.deps, lambda size: None, lambda *end: None)
        if is_bound:
            bound = asyncio.get_running_loop().create_future()
            bound.set_result([5, 6, 7])
            transfer.bind(bound)
        if is_computed:
            transfer.on_first_tokens(handoff_pb2.FirstTokens(token_id=7))
        await turns()
        transfer.heard_at = self.deps.clock.now()
        self.transfers.append(transfer)
        return transfer

    async def pass_time(self, seconds: int, delivers: bool = False) -> list[IncomingTransfer]:
        """What was found late in this time, in order."""
        late = []
        for _ in range(seconds):
            await asyncio.sleep(1)
            if delivers:
                self.watch.delivered()
            late += self.watch.find_late(self.transfers)
        return late


def test_a_transfer_that_the_peer_lets_hang_is_named_once() -> None:
    async def scenario() -> None:
        w = World()
        transfer = await w.open()
        assert not await w.pass_time(round(LEASE_S) - 1)
        assert await w.pass_time(10) == [transfer]
        assert w.watch.is_stuck

    run_virtual(scenario())


@pytest.mark.parametrize("lacking", ["is_computed", "is_bound"])
def test_what_is_not_the_peers_turn_never_expires(lacking: str) -> None:
    async def scenario() -> None:
        w = World()
        await w.open(**{lacking: False})
        assert not await w.pass_time(20)

    run_virtual(scenario())


def test_while_the_link_delivers_the_others_wait_in_line() -> None:
    async def scenario() -> None:
        w = World()
        transfer = await w.open()
        assert not await w.pass_time(20, delivers=True)
        assert await w.pass_time(20) == [transfer]

    run_virtual(scenario())
