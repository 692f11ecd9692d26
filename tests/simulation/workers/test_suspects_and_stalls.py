"""What workers tell of cores that die or stand still, and how they compute suspects."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from baton.testing.virtual_clock import virtual
from baton.wire.limits import NUM_TOKENS_ALONE
from tests.simulation.workers.fleet import Answer, FakeGateway, Fleet, Worker, fleet

PROMPT = list(range(100))
HERE: dict[str, Any] = {"prefill_endpoint": ""}
THERE: dict[str, Any] = {}


def record_steps(worker: Worker) -> list[tuple[str, ...]]:
    """The requests of each step from now on."""
    steps: list[tuple[str, ...]] = []
    run = worker.engine.runner.run

    def recorded(batch: Any) -> Any:
        steps.append(worker.engine.batch_request_ids())
        return run(batch)

    worker.engine.runner.run = recorded  # type: ignore[method-assign]
    return steps


@pytest.mark.parametrize("where", [HERE, THERE], ids=["local", "remote"])
@virtual
async def test_a_suspect_shares_its_first_steps_with_nobody_on_either_worker(where: Any) -> None:
    async with fleet(decode_sizes={"num_blocks": 256}) as f:
        steps = {"decode": record_steps(f.decode), "prefill": record_steps(f.prefill)}
        mates = []
        for number in range(3):
            prompt, name = [9, number, *range(40)], f"mate-{number}"
            mates.append(await f.gateway.submit(prompt, max_tokens=40, request_id=name, **where))
        suspect = await f.gateway.submit(
            PROMPT, max_tokens=20, request_id="suspect", is_suspect=True, **where
        )
        for answer in (*mates, suspect):
            await answer.over()
        assert suspect.tokens[0] == f.lone_run(PROMPT, 20)
        own = [step for step in steps["decode"] if "suspect" in step]
        assert own[: NUM_TOKENS_ALONE - 1] == [("suspect",)] * (NUM_TOKENS_ALONE - 1)
        assert any(len(step) > 1 for step in own), "afterwards it is one of many"
        assert {step for step in steps["prefill"] if "suspect" in step} <= {("suspect",)}


async def refusals(answers: list[Answer]) -> dict[str, bool]:
    """Who was refused, and whether as a suspect; all of them must be."""
    for answer in answers:
        await answer.over()
    return {a.refused[0].request_id: a.refused[0].failure.is_suspect for a in answers}


async def wait_for_step_of(worker: Worker, request_id: str) -> None:
    while request_id not in worker.client.progress().request_ids:
        await asyncio.sleep(0.001)


async def one_in_step_one_queued(f: Fleet) -> list[Answer]:
    """Two prompts; the first one's prefill runs now."""
    answers = [
        await f.gateway.submit(range(1000), request_id="runs"),
        await f.gateway.submit(range(5, 1000), request_id="waits"),
    ]
    await wait_for_step_of(f.prefill, "runs")
    return answers


def test_a_dying_prefill_core_names_whom_it_computed() -> None:
    @virtual
    async def scenario() -> None:
        async with fleet(decode_sizes={"num_blocks": 256}) as f:
            answers = await one_in_step_one_queued(f)
            assert f.prefill.client.progress().request_ids == ("runs",)
            f.prefill.client.kill()
            told = await refusals(answers)
            assert told == {"runs": True, "waits": False}
            raise _Done

    with pytest.raises(BaseExceptionGroup) as raised:
        scenario()
    assert raised.value.subgroup(_Done) is not None
    assert raised.value.subgroup(AssertionError) is None


class _Done(Exception):
    """The scenario got to its end: its dead core raises, too."""


async def stall(worker: Worker) -> None:
    worker.client.stop()
    while not worker.deps.watch.is_stalled:
        await asyncio.sleep(0.01)


@virtual
async def test_attempts_on_a_stalled_decode_core_fail_and_new_ones_are_refused() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(PROMPT, max_tokens=3)).over()  # steps have been measured
        running = await f.gateway.submit(PROMPT, max_tokens=500)
        await running.first_token()
        began_s = asyncio.get_running_loop().time()
        await stall(f.decode)
        await running.over()
        assert asyncio.get_running_loop().time() - began_s < 2
        assert running.finishes[0].failure.reason == "worker_lost"
        assert f.decode.deps.reports.load.stalled
        late = await f.gateway.submit(PROMPT)
        await late.over()
        assert late.refused[0].failure.reason == "unavailable"
        f.decode.client.go_on()
        while f.decode.deps.watch.is_stalled:
            await asyncio.sleep(0.01)
        assert not f.decode.deps.reports.load.stalled
        again = await f.gateway.submit(PROMPT, max_tokens=5)
        await again.over()
        assert again.tokens[0] == f.lone_run(PROMPT, 5)
        await f.settle(2)


@virtual
async def test_transfers_of_a_stalled_prefill_core_fail_at_once() -> None:
    async with fleet(decode_sizes={"num_blocks": 256}) as f:
        await (await f.gateway.submit(PROMPT, max_tokens=3)).over()
        answer = await f.gateway.submit(range(1000))
        await wait_for_step_of(f.prefill, answer_id(answer))
        await stall(f.prefill)
        await answer.over()
        assert answer.refused[0].failure.reason == "handoff_failed"
        late = await (await f.gateway.submit(PROMPT)).over()
        assert late.refused[0].failure.reason == "handoff_failed", "not the decode worker's fault"
        f.prefill.client.go_on()
        await f.settle(3)


def answer_id(answer: Answer) -> str:
    return f"request-{answer.handle}"


@virtual
async def test_the_next_life_of_a_worker_names_those_that_ran_when_it_died() -> None:
    async with fleet() as f:
        gateways = f.decode.front._gateways
        gateways._deps = replace(gateways._deps, last_suspects=("r1", "r2"))
        hello = await FakeGateway(f.dial_decode(), "gateway-9").hello()
        assert list(hello.suspect_request_ids) == ["r1", "r2"]
