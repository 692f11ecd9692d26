"""Which servers get new connections."""

import asyncio

import pytest

from baton.testing import ready_upstreams
from baton.testing.ready_upstreams import ReadyUpstreams
from baton.testing.virtual_clock import run_virtual


@pytest.mark.parametrize(
    ("answers", "ready"),
    [
        ([True, False], [True, False]),
        ([None, True], [False, True]),
        ([True, None, None, None, True], [True, True, True, False, True]),
        ([True, None, None, True, None, None], [True] * 6),
        ([False, None], [False, False]),
    ],
)
def test_a_server_that_is_silent_stays_what_it_was_for_a_while(
    answers: list[bool | None], ready: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(answers)

    async def ask(address: tuple[str, int]) -> bool | None:
        return left.pop(0)

    async def main() -> None:
        upstreams = ReadyUpstreams(lambda: ["http://10.0.0.1:1"], poll_s=1.0)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(upstreams.run())
            await asyncio.sleep(0.5)
            for expected in ready:
                assert bool(upstreams.ready) is expected
                if left:
                    await asyncio.sleep(1.0)
            running.cancel()

    monkeypatch.setattr(ready_upstreams, "_ask", ask)
    monkeypatch.setattr(ready_upstreams, "MAX_SILENT", 3)
    run_virtual(main())
