"""Helpers for tests in which a core ends."""

from typing import Any

import psutil
import pytest

from baton.engine.process.process_client import ProcessEngineClient
from baton.engine.protocol.client import CoreDied
from baton.testing.engine_driver import add_sequence

PROMPT = list(range(700, 845))  # four full blocks and a part


def ranks_of(pid: int) -> list[psutil.Process]:
    """The processes in which the core `pid` computes. They are forks of it, whose command line is
    the core's own where vLLM cannot give them a title."""
    own = psutil.Process(pid)
    return [
        child
        for child in own.children()
        if "Worker_TP" in child.cmdline()[0] or child.cmdline() == own.cmdline()
    ]


class WatchedCore:
    """A core that knows whether it was killed: its end may take a while on a busy machine."""

    def __init__(self, core: ProcessEngineClient) -> None:
        self.is_killed = False
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def kill(self) -> None:
        self.is_killed = True
        self._core.kill()


async def until_it_computes(core: ProcessEngineClient) -> None:
    core.send(add_sequence(1, PROMPT, max_tokens=400, ignore_eos=True))
    while not (await core.events()).token_ids:
        pass


async def until_it_dies(core: ProcessEngineClient) -> tuple[str, ...]:
    with pytest.raises(CoreDied) as died:
        while True:
            await core.events()
    return died.value.suspect_request_ids
