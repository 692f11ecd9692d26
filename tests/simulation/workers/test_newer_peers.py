"""Peers of a newer protocol version are spoken to, and what they add is left aside, not misread."""

from typing import Any

from baton.testing.newer_peer import from_the_future, unknown_frame
from baton.testing.virtual_clock import virtual
from baton.wire.protocol import PROTOCOL_VERSION
from tests.simulation.workers.fleet import FakeGateway, TamperedStream, fleet, pass_on

PROMPT = range(40)
NEWER_VERSION = 9


def newer(frame: Any) -> list[Any]:
    """The frame as a newer peer would send it, and a frame behind it that only newer ones know."""
    if frame.WhichOneof("frame") == "hello":
        frame.hello.protocol = NEWER_VERSION
    return [from_the_future(frame), unknown_frame(type(frame))]


@virtual
async def test_a_handoff_between_versions_brings_the_right_tokens() -> None:
    async with fleet() as f:
        f.to_prefill = f.to_decode = newer
        answer = await (await f.gateway.submit(PROMPT, max_tokens=12)).over()
        assert answer.tokens[0] == f.lone_run(PROMPT, 12)
        assert answer.finishes[0].reason == "length"
        await f.settle(1)


@virtual
async def test_a_newer_gateway_is_served_and_told_our_own_version() -> None:
    async with fleet() as f:
        stream: Any = TamperedStream(f.dial_decode(), newer, pass_on, lambda frame: 0.0)
        gateway = FakeGateway(stream, "gateway-9")
        hello = await gateway.hello()
        assert hello.protocol == PROTOCOL_VERSION
        f.tasks.create_task(gateway.run())
        answer = await gateway.submit(PROMPT, max_tokens=12, num_choices=2)
        await answer.over()
        assert answer.tokens[0] == f.lone_run(PROMPT, 12)
        await gateway.cancel("request-1")
        await stream.close()
        await f.settle(5)
