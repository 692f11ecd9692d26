"""A core that crashes ends at once, for its front to know the suspects, and says where it was."""

import asyncio
import signal
from collections.abc import Callable

import psutil
import pytest

from baton.engine.process.process_client import ProcessEngineClient
from baton.system.clock import SystemClock
from baton.worker.core_watch import TICK_S, CoreWatch
from baton.worker.settings import Settings
from tests.engines.conftest import CORES, ENGINES, core_words
from tests.engines.dying_core import WatchedCore, ranks_of, until_it_computes, until_it_dies
from tools.engine_table import ENGINE

# Where a thread of each kind of core is while it computes.
PLACES = {
    "baton": "baton/engine/process/core.py",
    "vllm": "baton/engines/vllm/engine.py",
    "vllm-on-2-ranks": "vllm/v1/executor/multiproc_executor.py",
}


@pytest.mark.parametrize("name", CORES)
async def test_a_crash_ends_a_core_at_once_and_leaves_its_stack(
    name: str,
    capfd: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    """Nothing holds up its end: it would look as if it stood still, and nobody were suspected."""
    engine, num_ranks = CORES[name]
    core = await ProcessEngineClient.start(ENGINES[engine], core_words(engine, num_ranks))
    record_property(ENGINE, core.info.engine)
    watched = WatchedCore(core)
    watch = CoreWatch(watched, SystemClock(), Settings(model="m").watch_limits())
    await until_it_computes(core)
    dying = asyncio.create_task(until_it_dies(core))
    crashing = ranks_of(core.pid)[1].pid if num_ranks > 1 else core.pid
    psutil.Process(crashing).send_signal(signal.SIGSEGV)
    while not (watched.is_killed or dying.done()):
        await asyncio.sleep(TICK_S)
        watch.tick(TICK_S)
    assert not watched.is_killed, "it was taken for a core that stands still"
    assert await dying == ("request-1",)
    await core.close()
    told = capfd.readouterr().err
    assert "Fatal Python error: Segmentation fault" in told
    assert PLACES[name] in told
    assert num_ranks == 1 or f"rank 1 has ended with {-signal.SIGSEGV}" in told
