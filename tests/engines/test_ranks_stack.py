"""The whole stack with two ranks in each decode worker and one in the prefill worker."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.conftest import Stack, wait_until
from tests.engines.dying_core import ranks_of
from tests.engines.test_vllm_stack import SEEDED, VllmStack, are_ready, cores_of, streamed


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = ["--engine", "vllm", "--dtype", "float32", "--kv-memory", "32MiB", "--max-batch", "8"]
    options += ["--tp", "2", "--prefill-tp", "1"]
    stack = VllmStack(tmp_path_factory.mktemp("ranks") / "home", *options)
    # Ranks wait for each other at each layer. With fewer cores than ranks, beside a worker that
    # starts, a step takes seconds now and then: nothing stands still, and nothing may look so.
    stack.environment["BATON_WORKER_STALL_S"] = "20"
    stack.start()
    yield stack
    assert stack.interrupt() == 0


def last_ranks(stack: Stack) -> list[psutil.Process]:
    """Of each decode worker, the rank that no core reads tokens of: the one that is forked last."""
    ranks = [ranks_of(core.pid) for core in cores_of(stack)]
    return [max(each, key=lambda rank: rank.create_time()) for each in ranks if each]


def spent_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("options", [{}, SEEDED], ids=["greedy", "seeded"])
def test_an_answer_goes_on_identically_when_a_rank_is_killed(
    stack: Stack, options: dict[str, float]
) -> None:
    wait_until(lambda: are_ready(stack), VllmStack.start_timeout_s)
    whole = streamed(stack, **options)
    ranks = {rank: spent_s(rank) for rank in last_ranks(stack)}
    assert len(ranks) == 2

    def kill_the_one_that_works() -> None:
        busiest = max(ranks, key=lambda rank: spent_s(rank) - ranks[rank])
        os.kill(busiest.pid, signal.SIGKILL)

    assert streamed(stack, kill_the_one_that_works, **options) == whole
