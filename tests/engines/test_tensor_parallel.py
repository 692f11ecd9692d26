"""Cores of several ranks: what they hand to each other, and how they end."""

import asyncio
import getpass
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from baton.engine.process.process_client import ProcessEngineClient
from baton.engine.protocol.messages import Start
from baton.system.clock import SystemClock
from baton.worker.core_watch import TICK_S, CoreWatch
from baton.worker.settings import Settings
from tests.engines.conftest import ENGINES, core_words, start_core
from tests.engines.driven_core import DrivenCore
from tests.engines.dying_core import (
    PROMPT,
    WatchedCore,
    ranks_of,
    until_it_computes,
    until_it_dies,
)

GREEDY = {"max_tokens": 30, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 0.9, "seed": 11, "top_p": 0.95, "presence_penalty": 0.6}
LIMIT_S = 3.0
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def cores() -> Iterator[dict[int, DrivenCore]]:
    """One core of one rank, and one of two."""
    made = {num_ranks: start_core("vllm", num_ranks) for num_ranks in (1, 2)}
    yield made
    for core in made.values():
        core.close()


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1), (2, 2)])
def test_blocks_go_from_any_number_of_ranks_to_any_other(
    cores: dict[int, DrivenCore], prefill: int, decode: int, options: dict[str, float]
) -> None:
    whole = cores[1].answer(PROMPT, **options)
    assert handed_over(cores[prefill], cores[decode], **options) == whole


def handed_over(source: DrivenCore, target: DrivenCore, **options: float) -> list[int]:
    """The answer to a prompt that one core prefills and the other one decodes."""
    held, first = source.prefill(PROMPT, **options)
    # Another tenant's: nothing of the prompt is cached there.
    seq_id = target.add(PROMPT, kind="remote", cache_key=os.urandom(32), **options)
    target.bind(seq_id)
    assert target.admitted[seq_id] == 0
    target.copy_blocks(source, held, seq_id)
    target.send(Start(seq_id, first, ()))
    target.until(lambda: seq_id in target.finished)
    source.release(held)
    return [first, *target.tokens[seq_id]]


def has_inherited(pid: int) -> bool:
    """The process has its core's progress page, which only a fork of the core has."""
    links = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    return any(link.startswith("/memfd:baton-progress") for link in links)


def test_spawned_ranks_hand_over_and_end_with_their_core(cores: dict[int, DrivenCore]) -> None:
    spec = replace(ENGINES["vllm"], env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
    spawned = DrivenCore(spec, core_words("vllm", 2))
    ranks = ranks_of(spawned.client.pid)
    assert len(ranks) == 2
    assert not any(has_inherited(rank.pid) for rank in ranks), "they have inherited nothing"
    whole = cores[1].answer(PROMPT, **SAMPLED)
    assert handed_over(spawned, cores[1], **SAMPLED) == whole
    assert handed_over(cores[1], spawned, **SAMPLED) == whole
    os.kill(spawned.client.pid, signal.SIGKILL)
    asyncio.run(until_gone(ranks))
    spawned.close()


def test_workers_with_any_number_of_ranks_have_blocks_of_one_form(
    cores: dict[int, DrivenCore],
) -> None:
    one, two = cores[1].info, cores[2].info
    assert one.kv_spec == two.kv_spec
    assert one.num_blocks == two.num_blocks, "the pool has one size, whatever computes"


async def start(folder: Path) -> ProcessEngineClient:
    # What was compiled for other cores is used again.
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    env = {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(compiled)}
    spec = replace(ENGINES["vllm"], env=env)
    return await ProcessEngineClient.start(spec, core_words("vllm", 2))


async def until_gone(processes: list[psutil.Process]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while any(each.is_running() and each.status() != "zombie" for each in processes):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_rank_that_is_killed_or_hangs_is_the_death_of_its_core(
    tmp_path: Path, number: signal.Signals
) -> None:
    names = set(SHARED_MEMORY.iterdir())
    core = await start(tmp_path)
    ranks = ranks_of(core.pid)
    assert len(ranks) == 2
    assert set(SHARED_MEMORY.iterdir()) <= names, "what they share goes with the last of them"
    assert not list(tmp_path.glob("vllm_dist*"))
    limits = Settings(model="m", engine="vllm", tensor_parallel=2).watch_limits()
    await until_it_computes(core)
    dying = asyncio.create_task(until_it_dies(core))
    ranks[1].send_signal(number)
    watched = WatchedCore(core)
    watch = CoreWatch(watched, SystemClock(), limits)
    num_ticks = 0
    while not (watched.is_killed or dying.done()):
        await asyncio.sleep(TICK_S)
        watch.tick(TICK_S)
        num_ticks += 1
    # With its usual steps that is below 3 s; a busy machine makes them longer.
    allowed_s = limits.limit_s(core.progress()) + limits.hang_s + 5 * TICK_S
    assert num_ticks * TICK_S <= allowed_s
    assert await dying == ("request-1",)
    await until_gone(ranks)
    await core.close()


async def test_no_rank_outlives_a_killed_core(tmp_path: Path) -> None:
    core = await start(tmp_path)
    ranks = ranks_of(core.pid)
    await until_it_computes(core)
    os.kill(core.pid, signal.SIGKILL)
    await until_gone(ranks)
    await until_it_dies(core)
    await core.close()
