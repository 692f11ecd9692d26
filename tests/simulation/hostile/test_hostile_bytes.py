"""No bytes on a connection make the gateway fail: what is not an acceptable request is refused.

With BATON_TEST_LONG there are 100,000 connections.
"""

import asyncio
import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given

from tests.simulation.hostile.long_counts import IS_LONG, examples, in_parts, parts, sources
from tests.unit.gateway.fakes import KEY
from tests.unit.gateway.hostile.connections import CHAT, exchange, packets
from tests.unit.gateway.stored.clients import Caller, with_store

BATCH = 80 if IS_LONG else 20
NUM_PARTS, NUM_EXAMPLES = 25, 50
# Longer than a head or a body may take to come.
SECONDS = 25.0
STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.M)
GOOD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer %b\r\n" % KEY.encode()
)
GOOD += b"content-length: %d\r\n\r\n%b" % (len(CHAT), CHAT)


@in_parts
@pytest.mark.parametrize("part", parts(NUM_PARTS))
def test_every_connection_is_answered_or_refused(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    num_sent = 0

    @examples(NUM_EXAMPLES, 4)
    @given(sources())
    def send(random: Random) -> None:
        async def scenario(caller: Caller) -> None:
            caller.fleet.worker.texts = ["Hi"]
            # At once: they wait for the same seconds.
            exchanges = [exchange(caller.app, packets(random), SECONDS) for _ in range(BATCH)]
            for answered in await asyncio.gather(*exchanges):
                assert not answered or answered.startswith(b"HTTP/1.1 "), answered
                statuses = [int(status) for status in STATUS.findall(answered)]
                assert all(status < 500 or status == 504 for status in statuses), answered
            assert STATUS.findall(await exchange(caller.app, [GOOD], 1.0)) == [b"200"]
            assert caller.app.num_open == 0

        nonlocal num_sent
        with_store(scenario)
        num_sent += BATCH

    send()
    record_property("hostile connections", num_sent)
