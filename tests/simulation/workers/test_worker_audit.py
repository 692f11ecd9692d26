"""What the fronts' audits see: nothing in sound lives, and each planted stray by its request."""

import asyncio

from baton.runtime import instruments
from baton.testing.virtual_clock import virtual
from baton.wire import failures
from tests.simulation.workers.fleet import Fleet, fleet

PROMPT = range(40)


def found(f: Fleet) -> list[tuple[str, str]]:
    fronts = (f.decode.front, f.prefill.front)
    return [(v.check, v.request_id) for front in fronts for v in front.violations()]


@virtual
async def test_a_request_leaves_nothing_to_find_while_it_runs_and_after() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=30)
        while not answer.is_over:
            await asyncio.sleep(0.005)
            assert not found(f)
        await f.settle(1)
        assert not found(f)


@virtual
async def test_a_sequence_without_an_attempt_is_told_with_its_request() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=500, request_id="r-lost")
        await answer.first_token()
        (session,) = f.decode.front._gateways._sessions.values()
        session.open_request_ids = lambda: iter(())
        before = instruments.AUDIT_VIOLATIONS.labels("sequence_without_attempt")._value.get()
        assert ("sequence_without_attempt", "r-lost") in found(f)
        for _ in range(3):
            f.decode.front._audit.look(f.decode.front.violations())
        told = instruments.AUDIT_VIOLATIONS.labels("sequence_without_attempt")._value.get()
        assert told - before == 1
        session.fail_all(failures.Cancelled("over"))
        await f.settle(1)


@virtual
async def test_an_attempt_that_nothing_will_end_is_told() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, max_tokens=500, request_id="r-stuck")
        await answer.first_token()
        dispatcher = f.decode.deps.dispatcher
        hidden, dispatcher._request_ids = dispatcher._request_ids, {}
        assert ("attempt_without_sequence", "r-stuck") in found(f)
        dispatcher._request_ids = hidden
        (session,) = f.decode.front._gateways._sessions.values()
        session.fail_all(failures.Cancelled("over"))
        await f.settle(1)


@virtual
async def test_a_lease_whose_peer_has_gone_is_told_with_its_request() -> None:
    async with fleet() as f:
        f.to_prefill = lambda frame: [] if frame.HasField("done") else [frame]
        answer = await f.gateway.submit(PROMPT, max_tokens=3, request_id="r-held")
        await answer.over()
        front = f.prefill.front
        hidden, front._sessions = front._sessions, set()
        assert ("lease_without_owner", "r-held") in found(f)
        front._sessions = hidden
