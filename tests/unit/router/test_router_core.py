"""The router without its network, on virtual time: reports in, picks out."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from baton.testing.virtual_clock import run_virtual
from baton.wire.failures import (
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unavailable,
)
from baton.wire.pick_reasons import text_of
from baton.wire.v1 import worker_pb2

MODEL = "fp-1"


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


def test_a_request_gets_a_pair_with_reasons(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        fleet.prefill()
        response = await fleet.pick()
        assert (response.decode.worker_id, response.prefill.worker_id) == ("d0", "p0")
        assert response.decode.endpoint == "d0:1"
        assert response.decode.boot_epoch == 1
        assert "d0+p0" in text_of(response.reasons)

    run(scenario)


def test_the_worker_that_holds_the_prefix_is_chosen_and_the_hit_predicted(
    router, run, hashes
) -> None:
    async def scenario() -> None:
        fleet = router()
        for name in ("d0", "d1", "d2"):
            fleet.decode(name)
        fleet.prefill("p0")
        holder = fleet.prefill("p1")
        holder.stored(1, 2, 3)
        response = await fleet.pick(block_hashes=hashes(1, 2, 3, 4))
        assert response.prefill.worker_id == "p1"
        assert response.predicted_cached_tokens == 48

    run(scenario)


def test_a_fully_cached_prompt_still_computes_its_last_token(router, run, hashes) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        fleet.prefill().stored(1, 2, 3, 4)
        response = await fleet.pick(block_hashes=hashes(1, 2, 3, 4))
        assert response.predicted_cached_tokens == 63

    run(scenario)


def test_removed_blocks_are_predicted_no_more(router, run, hashes) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        prefill = fleet.prefill()
        prefill.stored(1, 2)
        prefill.removed(1)
        response = await fleet.pick(block_hashes=hashes(1, 2))
        assert response.predicted_cached_tokens == 0

    run(scenario)


def test_a_burst_between_two_reports_spreads_over_the_workers(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        for name in ("d0", "d1", "d2", "d3"):
            fleet.decode(name)
        for name in ("p0", "p1"):
            fleet.prefill(name)
        picks = [await fleet.pick(f"r{i}") for i in range(8)]
        for role, names, share in (("decode", 4, 2), ("prefill", 2, 4)):
            chosen = [getattr(pick, role).worker_id for pick in picks]
            assert [chosen.count(name) for name in sorted(set(chosen))] == [share] * names

    run(scenario)


def test_a_lease_ends_when_the_worker_names_the_request(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        decode = fleet.decode()
        fleet.prefill()
        for i in range(4):
            await fleet.pick(f"r{i}")
        waiting = asyncio.create_task(fleet.pick("r4"))
        await settle()
        assert not waiting.done()
        decode.load("r0", "r1", "r2", "r3", num_running=3, num_blocks_free=70)
        assert (await waiting).decode.worker_id == "d0"

    run(scenario)


def test_a_lease_that_no_report_confirms_expires(router, run, clock) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.decode()
        fleet.prefill()
        for i in range(4):
            await fleet.pick(f"r{i}")
        response = await fleet.pick("r4")
        assert 2.0 <= response.queue_us / 1e6 <= 2.1

    run(scenario)


def test_a_request_that_is_picked_again_gives_its_first_slot_back(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        fleet.prefill()
        for _ in range(10):
            await fleet.pick("r1")

    run(scenario)


def test_a_worker_that_refused_is_avoided(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode("d0")
        fleet.decode("d1")
        fleet.prefill()
        for i in range(3):
            response = await fleet.pick(f"r{i}", exclude_worker_ids=["d0"])
            assert response.decode.worker_id == "d1"
            assert "d0 excluded" in text_of(response.reasons)

    run(scenario)


def test_the_only_worker_that_refused_is_tried_again_after_a_fresh_report(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        decode = fleet.decode()
        fleet.prefill()
        waiting = asyncio.create_task(fleet.pick("r1", exclude_worker_ids=["d0"]))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        decode.load()
        assert (await waiting).decode.worker_id == "d0"

    run(scenario)


def test_a_request_waits_until_a_report_shows_room(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        decode = fleet.decode()
        prefill = fleet.prefill()
        decode.load(num_running=4, num_blocks_free=50)
        waiting = asyncio.create_task(fleet.pick("r1"))
        for _ in range(10):
            await asyncio.sleep(0.25)
            decode.load(num_running=4, num_blocks_free=50)
            prefill.load()
            assert not waiting.done()
        decode.load(num_running=3, num_blocks_free=60)
        assert (await waiting).queue_us == pytest.approx(2.5e6, abs=0.02e6)

    run(scenario)


def test_growth_of_running_sequences_is_kept_free(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        decode = fleet.decode()
        # 64 tokens are 4 blocks and 2 more to grow into.
        decode.load(num_running=2, num_blocks_free=7)
        waiting = asyncio.create_task(fleet.pick())
        await settle()
        assert not waiting.done()
        decode.load(num_running=2, num_blocks_free=8)
        await waiting

    run(scenario)


def test_no_room_until_the_deadline_is_overloaded(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        fleet.decode().load(num_running=4)
        with pytest.raises(Overloaded) as caught:
            await fleet.pick(timeout_s=2)
        assert caught.value.retry_after_s >= 1

    run(scenario)


def test_no_room_within_the_routers_own_limit_is_overloaded(router, run) -> None:
    async def scenario() -> None:
        fleet = router(max_wait_s=3, stale_after_s=60)
        fleet.prefill()
        fleet.decode().load(num_running=4)
        with pytest.raises(Overloaded) as caught:
            await fleet.pick(timeout_s=60)
        assert caught.value.retry_after_s >= 1

    run(scenario)


def test_a_full_queue_is_overloaded_at_once(router, run, clock) -> None:
    async def scenario() -> None:
        fleet = router(max_queued=2, stale_after_s=60)
        fleet.prefill()
        fleet.decode().load(num_running=4)
        waiting = [asyncio.create_task(fleet.pick(f"r{i}", timeout_s=5)) for i in range(2)]
        await settle()
        before = clock.now()
        with pytest.raises(Overloaded):
            await fleet.pick("r2")
        assert clock.now() == before
        for task in waiting:
            with pytest.raises(Overloaded):
                await task

    run(scenario)


def test_a_queue_full_of_new_requests_refuses_no_stream_that_has_begun(router, run) -> None:
    async def scenario() -> None:
        fleet = router(max_queued=2, stale_after_s=60)
        fleet.prefill()
        decode = fleet.decode()
        decode.load(num_running=4)
        new = [asyncio.create_task(fleet.pick(f"r{i}")) for i in range(2)]
        await settle()
        begun = asyncio.create_task(fleet.pick("begun", has_begun=True))
        await settle()
        assert not begun.done()
        decode.load(num_running=3)
        await begun
        for task in new:
            task.cancel()

    run(scenario)


def test_a_cancelled_pick_gives_its_place_and_its_slot_back(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        decode = fleet.decode()
        decode.load(num_running=4)
        first = asyncio.create_task(fleet.pick("r1"))
        second = asyncio.create_task(fleet.pick("r2"))
        await settle()
        # Granted and cancelled in the same turn of the loop: the grant must not leak.
        decode.load(num_running=3)
        first.cancel()
        await settle()
        assert (await second).queue_us < 1e6

    run(scenario)


def test_two_models_have_their_own_workers_and_queues(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode("d0", "fp-1").load(num_running=4)
        fleet.prefill("p0", "fp-1")
        fleet.decode("d1", "fp-2")
        fleet.prefill("p1", "fp-2")
        stuck = asyncio.create_task(fleet.pick("r1", model_fp="fp-1"))
        await settle()
        response = await fleet.pick("r2", model_fp="fp-2")
        assert (response.decode.worker_id, response.prefill.worker_id) == ("d1", "p1")
        stuck.cancel()

    run(scenario)


def test_an_unknown_model_is_not_found_once_all_workers_have_registered(router, run, clock) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1",))
        fleet.decode()
        with pytest.raises(ModelNotFound):
            await fleet.pick(model_fp="other")
        assert clock.now() == 0

    run(scenario)


def test_a_router_that_just_started_waits_for_the_models_worker(router, run) -> None:
    async def scenario() -> None:
        fleet = router(workers=("d0:1", "p0:1"))
        waiting = asyncio.create_task(fleet.pick())
        await asyncio.sleep(1)
        fleet.decode()
        await asyncio.sleep(1)
        # It does not take the decode worker alone for an aggregated fleet either.
        assert not waiting.done()
        fleet.prefill()
        assert (await waiting).prefill.worker_id == "p0"

    run(scenario)


def test_a_router_that_just_started_picks_when_all_listed_workers_have_registered(
    router, run
) -> None:
    async def scenario() -> None:
        fleet = router(disaggregate="auto")
        fleet.core.list_workers(frozenset(("d0:1", "d1:1", "d2:1")))
        fleet.decode("d0")
        waiting = asyncio.create_task(fleet.pick())
        await asyncio.sleep(0.2)
        assert not waiting.done(), "it would send everything to the one worker that it knows"
        fleet.decode("d1").stored(1)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        fleet.core.lose("d2:1")  # nothing listens there
        await asyncio.sleep(0.1)
        assert (await waiting).decode.worker_id in ("d0", "d1")

    run(scenario)


def test_a_router_that_just_started_picks_when_it_knows_what_the_workers_have_cached(
    router, run, clock, hashes
) -> None:
    async def scenario() -> None:
        fleet = router(disaggregate="auto")
        fleet.core.list_workers(frozenset(("d0:1", "d1:1")))
        fleet.decode("d0")
        late = fleet.decode("d1", tells_cache=False)
        waiting = asyncio.create_task(fleet.pick(block_hashes=hashes(1, 2, 3)))
        await asyncio.sleep(0.05)
        late.load()
        assert not waiting.done(), "it does not know yet what this worker has"
        ready = [each.ready for each in fleet.core.admission().models[0].workers]
        assert not any(ready), "gateways should ask a router that knows more"
        late.send(snapshot=worker_pb2.KvSnapshot(hashes=hashes(1, 2, 3)))
        assert (await waiting).decode.worker_id == "d1"
        assert clock.now() < 0.1
        assert all(each.ready for each in fleet.core.admission().models[0].workers)

    run(scenario)


def test_a_listed_worker_that_never_answers_delays_the_first_picks_by_a_second(
    router, run, clock
) -> None:
    async def scenario() -> None:
        fleet = router(disaggregate="auto")
        fleet.core.list_workers(frozenset(("d0:1", "hangs:1")))
        worker = fleet.decode("d0")
        waiting = asyncio.create_task(fleet.pick())
        began_at = clock.now()
        while not waiting.done():
            await asyncio.sleep(0.05)
            worker.load()
        assert clock.now() - began_at == pytest.approx(1.0, abs=0.1)
        fleet.core.list_workers(frozenset(("d0:1", "hangs:1", "new:1")))
        await fleet.pick("r2")
        assert clock.now() - began_at == pytest.approx(1.0, abs=0.1), "only a new router waits"

    run(scenario)


def test_a_model_without_a_ready_worker_is_refused_after_a_while(router, run, clock) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        decode = fleet.decode()
        fleet.core.lose(decode.endpoint)
        before = clock.now()
        with pytest.raises(Unavailable, match="d0 lost") as caught:
            await fleet.pick()
        assert caught.value.reason == "no_worker"
        assert caught.value.retry_after_s > 0
        assert clock.now() - before == pytest.approx(10, abs=0.1)

    run(scenario)


def test_a_worker_that_restarts_is_waited_for(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        decode = fleet.decode()
        fleet.core.lose(decode.endpoint)
        waiting = asyncio.create_task(fleet.pick())
        await asyncio.sleep(3)
        assert not waiting.done()
        decode.start(boot_epoch=2)
        assert (await waiting).decode.boot_epoch == 2

    run(scenario)


def test_a_draining_worker_gets_nothing_new(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.prefill()
        fleet.decode("d0").send(draining=True)
        fleet.decode("d1")
        for i in range(3):
            assert (await fleet.pick(f"r{i}")).decode.worker_id == "d1"

    run(scenario)


def test_a_silent_worker_counts_as_busy(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        prefill = fleet.prefill()
        fleet.decode("d0")
        await asyncio.sleep(1.5)
        prefill.load()
        fleet.decode("d1")
        for i in range(3):
            response = await fleet.pick(f"r{i}")
            assert response.decode.worker_id == "d1"
            assert "d0 stale" in text_of(response.reasons)

    run(scenario)


def test_when_all_workers_fall_silent_together_the_last_known_state_is_used(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        workers = [fleet.prefill(), fleet.decode("d0"), fleet.decode("d1")]
        for worker in workers:
            fleet.core.lose(worker.endpoint)
        assert (await fleet.pick()).prefill.worker_id == "p0"

    run(scenario)


def test_workers_that_died_one_after_the_other_are_not_taken_for_a_partition(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=1)
        prefill, decode = fleet.prefill(), fleet.decode()
        fleet.core.lose(decode.endpoint)
        for _ in range(4):
            await asyncio.sleep(0.5)
            prefill.load()
        fleet.core.lose(prefill.endpoint)
        with pytest.raises(Unavailable):
            await fleet.pick()

    run(scenario)


def test_a_partition_is_not_believed_for_ever(router, run) -> None:
    async def scenario() -> None:
        fleet = router(isolation_s=30)
        for worker in (fleet.prefill(), fleet.decode()):
            fleet.core.lose(worker.endpoint)
        await asyncio.sleep(31)
        with pytest.raises(Unavailable):
            await fleet.pick()

    run(scenario)


def test_decode_workers_alone_are_an_aggregated_fleet(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        response = await fleet.pick()
        assert not response.HasField("prefill")

    run(scenario)


def test_without_prefill_workers_short_prompts_go_local_and_long_ones_are_refused(
    router, run
) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60, local_prefill_max_tokens=100)
        fleet.decode()
        fleet.core.lose(fleet.prefill().endpoint)
        response = await fleet.pick("r1")
        assert not response.HasField("prefill")
        assert response.queue_us >= 1e6
        with pytest.raises(Unavailable) as caught:
            await fleet.pick("r2", num_prompt_tokens=200)
        assert caught.value.reason == "no_worker"

    run(scenario)


def test_auto_keeps_a_cached_prompt_on_its_decode_worker(router, run, hashes) -> None:
    async def scenario() -> None:
        fleet = router(disaggregate="auto")
        fleet.decode("d0").stored(1, 2, 3, 4)
        fleet.decode("d1")
        fleet.prefill()
        response = await fleet.pick(block_hashes=hashes(1, 2, 3, 4))
        assert response.decode.worker_id == "d0"
        assert not response.HasField("prefill")

    run(scenario)


def test_a_request_that_must_prefill_on_decode_gets_no_prefill_worker(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        fleet.prefill()
        response = await fleet.pick(local_prefill=True)
        assert response.decode.worker_id == "d0"
        assert not response.HasField("prefill")

    run(scenario)


def test_a_prompt_that_fits_on_no_worker_is_refused_at_once(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        fleet.prefill()
        with pytest.raises(InvalidRequest) as caught:
            await fleet.pick(num_prompt_tokens=1600)
        assert caught.value.reason == "context_length_exceeded"

    run(scenario)


def test_too_many_choices_for_any_worker_are_refused_naming_n(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        fleet.prefill()
        with pytest.raises(InvalidRequest, match="50 choices") as caught:
            await fleet.pick(num_choices=50)
        assert caught.value.param == "n"

    run(scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_prompt_tokens": 0},
        {"num_prompt_tokens": 2**32 - 1},
        {"num_choices": 10**9},
        {"block_hashes": b"short"},
    ],
)
def test_figures_that_no_request_has_are_invalid(router, run, fields) -> None:
    async def scenario() -> None:
        fleet = router()
        fleet.decode()
        with pytest.raises(InvalidRequest):
            await fleet.pick(**fields)

    run(scenario)


def test_a_closed_router_refuses_what_waits_and_what_comes(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        fleet.prefill()
        fleet.decode().load(num_running=4)
        waiting = asyncio.create_task(fleet.pick("r1"))
        await settle()
        fleet.core.close()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await fleet.pick("r2")

    run(scenario)


def test_gateways_hear_of_the_fleet_at_once_on_change_and_regularly(router, run, clock) -> None:
    async def scenario() -> None:
        fleet = router()
        heard = []

        async def watch() -> None:
            async for response in fleet.core.watch_admission(takes_deltas=True):
                heard.append((round(clock.now(), 3), len(response.models)))

        watcher = asyncio.create_task(watch())
        await asyncio.sleep(0.05)
        fleet.decode()
        await asyncio.sleep(0.2)
        fleet.core.close()
        await watcher
        assert heard[:3] == [(0.0, 0), (0.05, 1), (0.15, 1)]

    run(scenario)


def test_gateways_hear_what_they_need_to_know_of_a_model(router, run) -> None:
    async def scenario() -> None:
        fleet = router(stale_after_s=60)
        decode = fleet.decode()
        decode.load(num_running=4, num_waiting=1, num_blocks_free=25)
        prefill = fleet.prefill()
        prefill.load(prefill_tokens_per_s=500.0, num_queued_prefill_tokens=1000)
        prefill.send(draining=True)
        second = fleet.prefill("p1")
        second.load(prefill_tokens_per_s=700.0, num_queued_prefill_tokens=1400)
        waiting = asyncio.create_task(fleet.pick())
        await settle()
        (model,) = fleet.core.admission().models
        assert (model.model_fp, model.name, model.block_size) == (MODEL, "demo", 16)
        assert model.max_model_len == 4096
        assert model.num_queued == 1
        assert model.prefill_tokens_per_s == 700
        assert list(model.predicted_wait_s) == [2.0]
        states = {worker.worker_id: worker for worker in model.workers}
        assert states["d0"].ready
        assert states["d0"].kv_usage == 0.75
        assert (states["d0"].num_running, states["d0"].num_waiting) == (4, 1)
        assert not states["p0"].ready
        assert states["p0"].draining
        waiting.cancel()

    run(scenario)


def test_auto_follows_the_rates_and_the_streams_that_workers_report(router, run) -> None:
    async def scenario() -> None:
        fleet = router(disaggregate="auto", stale_after_s=600)
        decode, prefill = fleet.decode(), fleet.prefill()
        running = {"num_running": 3, "decode_step_s": 0.01, "chunk_tokens": 100}

        async def is_prefilled_on_decode() -> bool:
            response = await fleet.pick(num_prompt_tokens=640)
            return not response.HasField("prefill")

        prefill.load(prefill_tokens_per_s=5000.0)
        assert await is_prefilled_on_decode()
        decode.load(**running)
        assert not await is_prefilled_on_decode()
        prefill.load(prefill_tokens_per_s=100.0)
        decode.load(prefill_tokens_per_s=5000.0, **running)
        assert await is_prefilled_on_decode()

    run(scenario)


def test_the_wait_for_a_pool_is_its_queued_tokens_at_its_measured_rates(router, run) -> None:
    def queued(unit: str) -> float | None:
        labels = {"model_name": "demo", "role": "prefill"}
        return REGISTRY.get_sample_value(f"baton_router_queued_prefill_{unit}", labels)

    async def scenario() -> None:
        fleet = router()
        fleet.prefill("p0").load(num_queued_prefill_tokens=3000, prefill_tokens_per_s=1000.0)
        fleet.prefill("p1").load(num_queued_prefill_tokens=1000, prefill_tokens_per_s=3000.0)
        fleet.core.check_health(0.1)
        assert (queued("tokens"), queued("seconds")) == (4000, 1.0)

    run(scenario)
