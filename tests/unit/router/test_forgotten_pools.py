"""A router forgets a model, or one of its pools, that was taken away for good."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import ModelNotFound, Unavailable
from services.router.fleet.health import TICK_S

FORGET_S = 60.0


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


@pytest.fixture
def fleet(router):
    return lambda: router(workers=("kubernetes:workers",), forget_after_s=FORGET_S)


async def live(core, seconds: float) -> None:
    for _ in range(int(seconds / TICK_S)):
        await asyncio.sleep(TICK_S)
        core.check_health(TICK_S)
        core.check_integrity()


def lose(core, *endpoints: str) -> None:
    """Lose these workers; discovery lists none in their place."""
    core.list_workers(frozenset())
    for endpoint in endpoints:
        core.lose(endpoint)


def known_models(core) -> list[str]:
    return [model.model_fp for model in core.admission().models]


def series_of(model_name: str) -> set[str]:
    samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
    return {
        sample.name
        for sample in samples
        if sample.name.startswith("baton_router") and sample.labels.get("model_name") == model_name
    }


def test_a_model_whose_workers_are_gone_for_long_is_forgotten(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        own.decode()
        await live(own.core, 1)
        lose(own.core, "d0:1")
        await live(own.core, FORGET_S - 1)
        assert known_models(own.core) == ["fp-1"]
        with pytest.raises(Unavailable, match="no worker is ready"):
            await own.pick()
        await live(own.core, 2)
        assert known_models(own.core) == []
        with pytest.raises(ModelNotFound):
            await own.pick()

    run(scenario)


def test_the_metrics_of_a_forgotten_model_end(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        worker = own.decode("d0", "fp-gone")
        worker.register.model_name = "gone"
        worker.start(boot_epoch=2)
        own.core.list_workers(frozenset(("d0:1",)))
        await own.pick(model_fp="fp-gone")
        await live(own.core, 1)
        assert {"baton_router_ready_workers", "baton_router_picks_total"} <= series_of("gone")
        lose(own.core, "d0:1")
        await live(own.core, FORGET_S + 1)
        assert series_of("gone") == set()

    run(scenario)


def test_the_counters_of_a_model_begin_at_0(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        worker = own.decode("d0", "fp-fresh")
        worker.register.model_name = "fresh"
        worker.start(boot_epoch=2)
        await live(own.core, 0.5)
        labels = {"model_name": "fresh", "cause": "silent"}
        assert REGISTRY.get_sample_value("baton_router_ejections_total", labels) == 0

    run(scenario)


def test_a_worker_that_is_still_listed_is_not_forgotten(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        own.decode()
        own.core.list_workers(frozenset({"d0:1"}))
        own.core.lose("d0:1")
        await live(own.core, 3 * FORGET_S)
        own.core.list_workers(frozenset())
        await live(own.core, FORGET_S - 1)
        assert known_models(own.core) == ["fp-1"]
        await live(own.core, 2)
        assert known_models(own.core) == []

    run(scenario)


def test_a_worker_that_came_back_in_between_starts_the_time_anew(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        worker = own.decode()
        lose(own.core, "d0:1")
        await live(own.core, FORGET_S - 1)
        worker.start()
        await live(own.core, 1)
        own.core.lose("d0:1")
        await live(own.core, FORGET_S - 1)
        assert known_models(own.core) == ["fp-1"]

    run(scenario)


def test_a_model_for_which_a_request_waits_is_kept(router, run) -> None:
    async def scenario() -> None:
        own = router(workers=("kubernetes:workers",), forget_after_s=1.0, no_worker_wait_s=5.0)
        own.decode()
        lose(own.core, "d0:1")
        await live(own.core, 0.5)
        waiting = asyncio.create_task(own.pick())
        await live(own.core, 4)
        assert known_models(own.core) == ["fp-1"]
        with pytest.raises(Unavailable, match="no worker is ready"):
            await waiting
        await live(own.core, 1)
        assert known_models(own.core) == []

    run(scenario)


def test_without_its_prefill_pool_a_fleet_is_aggregated(router, run) -> None:
    async def scenario() -> None:
        own = router(
            workers=("kubernetes:workers",), forget_after_s=5.0, local_prefill_max_tokens=100
        )
        decode = own.decode()
        own.prefill()
        lose(own.core, "p0:1")
        for _ in range(6):
            await live(own.core, 1)
            decode.load()
        # Longer than what decode workers take over from prefill workers that are only away.
        response = await own.pick(num_prompt_tokens=1000, expected_output_tokens=1)
        assert response.decode.worker_id == "d0"
        assert not response.HasField("prefill")

    run(scenario)


def test_the_gauges_of_a_name_count_all_revisions_that_serve_it(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        own.decode("d0", "fp-new")
        own.decode("d1", "fp-old")
        await live(own.core, 0.5)
        labels = {"model_name": "demo", "role": "decode"}
        assert REGISTRY.get_sample_value("baton_router_ready_workers", labels) == 2
        lose(own.core, "d1:1")
        await live(own.core, 0.5)
        assert REGISTRY.get_sample_value("baton_router_ready_workers", labels) == 1

    run(scenario)


def test_the_metrics_of_a_large_fleet_are_as_many_as_of_a_small_one(fleet, run) -> None:
    async def scenario() -> None:
        own = fleet()
        counts = []
        for number in range(50):
            own.decode(f"d{number}").load()
            own.prefill(f"p{number}").load()
            await live(own.core, TICK_S)
            counts.append(sum(len(metric.samples) for metric in REGISTRY.collect()))
        assert len(set(counts)) == 1

    run(scenario)
