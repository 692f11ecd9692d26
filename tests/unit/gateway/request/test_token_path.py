"""The way of a token through the gateway is a short chain of calls in the reader's turn."""

import asyncio
import inspect
import re
import sys
from collections import Counter
from types import FrameType
from typing import Any

from tests.unit.gateway.fakes import Fleet, simulate

NUM_TOKENS = 50
# Measured: 30, those for the frame included; a client over HTTP adds seven.
MOST_CALLS = 40
ROOMS = re.compile(r"/services/gateway/(http|openai|request|text|tools|workers)/")


class CallCount:
    """Counts the functions that are entered in the rooms of the gateway, coroutines apart."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.coroutines: Counter[str] = Counter()

    def __enter__(self) -> "CallCount":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and ROOMS.search(code.co_filename):
            is_coroutine = bool(code.co_flags & inspect.CO_COROUTINE)
            (self.coroutines if is_coroutine else self.functions)[code.co_qualname] += 1


def test_a_token_enters_no_coroutine_and_few_functions() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 90]
        task = fleet.tasks.create_task(fleet.chat())
        await _until_written(fleet, 20)
        with CallCount() as count:
            await _until_written(fleet, 20 + NUM_TOKENS)
        assert (await task).text() == "x" * 90
        assert not count.coroutines
        assert count.functions.total() <= MOST_CALLS * NUM_TOKENS, count.functions.most_common(50)

    simulate(scenario)


async def _until_written(fleet: Fleet, num_tokens: int) -> None:
    while max(fleet.worker.num_written.values(), default=0) < num_tokens:
        await asyncio.sleep(0.001)
