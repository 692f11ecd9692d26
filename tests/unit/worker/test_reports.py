"""The worker's report log and the serving of one router, on virtual time and in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from baton.engine.protocol.cache_messages import StoredBlocks
from baton.engine.protocol.messages import EngineLoad, StepEvents
from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import memory_stream_pair
from baton.testing.newer_peer import from_the_future
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import Incompatible, Overloaded
from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from baton.worker import kv_log
from baton.worker import reports as reports_module
from baton.worker.reports import ReportLog, ReportSubscription
from baton.worker.reports_servicer import serve_reports

T = TypeVar("T")


def hashes(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(HASH_BYTES, "big") for number in numbers)


def events(
    step: int = 1,
    *,
    running: int = 0,
    removed: bytes = b"",
    stored: bytes = b"",
    snapshot: bytes | None = None,
) -> StepEvents:
    return StepEvents(
        step=step,
        load=EngineLoad(running, 0, 90, 5, 0, 1000.0, 0.01, chunk_tokens=64),
        removed_hashes=removed,
        stored=[StoredBlocks(hashes(0), stored)] if stored else [],
        snapshot=snapshot,
    )


class Worker:
    """A report log with one subscription and a count of the snapshots asked of the core."""

    def __init__(self) -> None:
        self.num_snapshots_asked = 0
        self.clock = VirtualClock()
        register = worker_pb2.Register(worker_id="decode-0", num_blocks=100)
        self.log = ReportLog(register, self._ask, self.clock)

    def _ask(self) -> None:
        self.num_snapshots_asked += 1

    def answer(self, stored: bytes = b"") -> None:
        self.log.apply(events(snapshot=stored))


def subscribed(scenario: Callable[[Worker, ReportSubscription], Awaitable[T]]) -> T:
    async def main() -> T:
        worker = Worker()
        with worker.log.subscribe() as subscription:
            return await scenario(worker, subscription)

    return run_virtual(main())


async def drain(subscription: ReportSubscription) -> list[worker_pb2.Report]:
    """What the router would be sent next, acknowledged."""
    reports = await subscription.next_reports()
    if reports:
        subscription.acknowledge(worker_pb2.ReportAck(seq=reports[-1].seq))
    return reports


async def after_start(worker: Worker, subscription: ReportSubscription) -> None:
    """Register and an empty snapshot have been sent."""
    worker.answer()
    await drain(subscription)
    await drain(subscription)


def kinds(reports: list[worker_pb2.Report]) -> list[str | None]:
    return [report.WhichOneof("report") for report in reports]


def test_a_subscription_starts_with_register_then_snapshot_and_load() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        assert worker.num_snapshots_asked == 1
        worker.answer(hashes(1, 2))
        assert kinds(await drain(subscription)) == ["register"]
        snapshot, load = await drain(subscription)
        assert snapshot.snapshot.hashes == hashes(1, 2)
        assert load.load.num_blocks_free == 90
        assert load.load.chunk_tokens == 64
        assert [snapshot.seq, load.seq] == [2, 3]

    subscribed(scenario)


def test_kv_events_before_the_snapshot_are_part_of_it() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await drain(subscription)
        worker.log.apply(events(stored=hashes(1)))
        assert kinds(await drain(subscription)) == ["load"]
        worker.log.apply(events(2, snapshot=hashes(1, 2), stored=hashes(2)))
        worker.log.apply(events(3, stored=hashes(3)))
        snapshot, later, _ = await drain(subscription)
        assert snapshot.snapshot.position == later.kv_events.position == 2
        assert later.kv_events.events[0].stored.hashes == hashes(3)

    subscribed(scenario)


def test_kv_events_keep_their_order_over_steps_removed_before_stored() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.apply(events(2, stored=hashes(1)))
        worker.log.apply(events(3, removed=hashes(1), stored=hashes(2)))
        sent = (await drain(subscription))[0].kv_events.events
        assert [event.WhichOneof("event") for event in sent] == ["stored", "removed", "stored"]

    subscribed(scenario)


def test_many_steps_make_few_load_reports_and_the_last_one_counts() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        loads = []

        async def read() -> None:
            while True:
                loads.extend(await drain(subscription))

        reader = asyncio.create_task(read())
        for step in range(2, 102):
            worker.log.apply(events(step))
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        reader.cancel()
        assert 15 <= len(loads) <= 25
        assert loads[-1].load.step_counter == 101

    subscribed(scenario)


def test_an_idle_worker_reports_every_quarter_of_a_second() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        loop = asyncio.get_running_loop()
        before = loop.time()
        for _ in range(4):
            assert kinds(await drain(subscription)) == ["load"]
        assert loop.time() - before == pytest.approx(1.0)

    subscribed(scenario)


def test_sequences_whose_prompt_is_on_its_way_count_as_waiting() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        load = EngineLoad(3, 1, 50, 0, 0, 0.0, 0.0, num_not_started=5)
        worker.log.apply(StepEvents(2, load))
        assert (await drain(subscription))[0].load.num_waiting == 6

    subscribed(scenario)


def test_accepted_requests_are_named_once() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.accepted("r1")
        worker.log.accepted("r2")
        assert list((await drain(subscription))[0].load.accepted_request_ids) == ["r1", "r2"]
        assert not (await drain(subscription))[0].load.accepted_request_ids

    subscribed(scenario)


def test_a_router_that_comes_later_is_told_what_was_accepted_shortly_before() -> None:
    """Its peers tell it of their picks: without the names it would count each of them twice."""

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.accepted("long ago")
        worker.clock.advance(reports_module.ACCEPTED_S + 1)
        worker.log.accepted("r1")
        await drain(subscription)
        with worker.log.subscribe() as later:
            await drain(later)
            worker.log.accepted("r2")
            assert list((await drain(later))[-1].load.accepted_request_ids) == ["r1", "r2"]
            assert not (await drain(later))[-1].load.accepted_request_ids

    subscribed(scenario)


def test_draining_is_told_at_once_and_to_routers_that_come_later() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.set_draining()
        assert kinds(await drain(subscription)) == ["draining", "load"]
        with worker.log.subscribe() as late:
            await drain(late)
            assert "draining" in kinds(await drain(late))

    subscribed(scenario)


def test_a_worker_that_leaves_knows_when_every_router_knows() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        with worker.log.subscribe() as other:
            await after_start(worker, other)
            worker.log.set_draining()
            async with asyncio.TaskGroup() as tasks:
                known = tasks.create_task(worker.log.draining_taken(10))
                await drain(subscription)
                await asyncio.sleep(1)
                assert not known.done()
                unacknowledged = await other.next_reports()
                assert "draining" in kinds(unacknowledged)
                await asyncio.sleep(1)
                assert not known.done()
                other.acknowledge(worker_pb2.ReportAck(seq=unacknowledged[-1].seq))
            assert known.result()

    subscribed(scenario)


def test_a_router_that_is_silent_or_leaves_holds_up_nobody() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.set_draining()
        assert not await worker.log.draining_taken(1)
        await drain(subscription)
        with worker.log.subscribe():
            known = asyncio.ensure_future(worker.log.draining_taken(10))
            await asyncio.sleep(1)
            assert not known.done()
        assert await known

    subscribed(scenario)


def test_a_backlog_that_is_too_long_becomes_a_snapshot(monkeypatch) -> None:
    monkeypatch.setattr(kv_log, "MAX_LOG_HASHES", 3)

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.apply(events(2, stored=hashes(1, 2, 3, 4)))
        assert worker.num_snapshots_asked == 2
        assert kinds(await drain(subscription)) == ["load"]
        worker.answer(hashes(1, 2, 3, 4))
        assert kinds(await drain(subscription)) == ["snapshot", "load"]

    subscribed(scenario)


def test_a_router_that_asks_gets_a_snapshot_and_no_events_before_it() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.apply(events(2, stored=hashes(1)))
        subscription.acknowledge(worker_pb2.ReportAck(seq=3, want_snapshot=True))
        assert kinds(await drain(subscription)) == ["load"]
        worker.answer(hashes(1))
        assert kinds(await drain(subscription)) == ["snapshot", "load"]

    subscribed(scenario)


def test_a_router_that_comes_back_gets_what_it_missed_and_no_snapshot() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.apply(events(2, stored=hashes(1)))
        worker.log.apply(events(3, stored=hashes(2)))
        with worker.log.subscribe(1) as again:
            assert worker.num_snapshots_asked == 1
            await drain(again)
            missed, _ = await drain(again)
            assert missed.kv_events.position == 1
            assert [e.stored.hashes for e in missed.kv_events.events] == [hashes(2)]

    subscribed(scenario)


@pytest.mark.parametrize("place", [0, 9])
def test_a_router_that_was_away_too_long_or_knows_another_life_gets_a_snapshot(
    place: int, monkeypatch
) -> None:
    monkeypatch.setattr(kv_log, "MAX_LOG_EVENTS", 1)

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.apply(events(2, stored=hashes(1)))
        worker.log.apply(events(3, stored=hashes(2)))
        with worker.log.subscribe(place) as again:
            worker.answer(hashes(1, 2))
            await drain(again)
            assert kinds(await drain(again)) == ["snapshot", "load"]

    subscribed(scenario)


def test_a_digest_of_the_cache_goes_behind_the_events_that_it_contains() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        sent: list[worker_pb2.Report] = []
        for step in range(2, 40):
            turn = events(step, stored=hashes(step))
            turn.num_cached_hashes, turn.cache_digest = step - 1, step
            worker.log.apply(turn)
            sent += await drain(subscription)
        (digest,) = [report.digest for report in sent if report.HasField("digest")]
        assert digest.num_hashes == digest.position
        assert int.from_bytes(digest.xor, "little") == digest.num_hashes + 1
        before = sent[: [report.HasField("digest") for report in sent].index(True)]
        assert sum(len(report.kv_events.events) for report in before) == digest.position

    subscribed(scenario)


def test_a_large_snapshot_travels_in_parts_of_one_number(monkeypatch) -> None:
    monkeypatch.setattr(reports_module, "MAX_REPORT_HASHES", 2)

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await drain(subscription)
        worker.answer(hashes(1, 2, 3, 4, 5))
        deps = (await drain(subscription))[:-1]
        assert [part.seq for part in deps] == [2, 2, 2]
        assert [part.snapshot.more for part in deps] == [True, True, False]
        assert b"".join(part.snapshot.hashes for part in deps) == hashes(1, 2, 3, 4, 5)

    subscribed(scenario)


def test_long_kv_events_are_cut_into_reports_below_the_frame_limit(monkeypatch) -> None:
    monkeypatch.setattr(kv_log, "MAX_REPORT_HASHES", 2)
    monkeypatch.setattr(reports_module, "MAX_REPORT_HASHES", 2)

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.apply(events(2, removed=hashes(9), stored=hashes(1, 2, 3)))
        sent = [r for r in await drain(subscription) if r.WhichOneof("report") == "kv_events"]
        stored = [event.stored for report in sent for event in report.kv_events.events][1:]
        assert len(sent) == 3
        assert [s.hashes for s in stored] == [hashes(1, 2), hashes(3)]
        assert [s.parent_hash for s in stored] == [hashes(0), hashes(2)]

    subscribed(scenario)


def test_a_router_that_acknowledges_nothing_is_sent_a_bounded_number(monkeypatch) -> None:
    monkeypatch.setattr(reports_module, "MAX_UNACKNOWLEDGED", 5)

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        worker.answer()
        num_sent = 0

        async def read_without_acknowledging() -> None:
            nonlocal num_sent
            while True:
                num_sent += len(await subscription.next_reports())

        reader = asyncio.create_task(read_without_acknowledging())
        await asyncio.sleep(60)
        reader.cancel()
        assert num_sent <= 7

    subscribed(scenario)


def test_one_answer_of_the_core_serves_all_that_wait_for_a_snapshot() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        with worker.log.subscribe() as other:
            assert worker.num_snapshots_asked == 1
            worker.answer(hashes(7))
            for each in (subscription, other):
                await drain(each)
                assert (await drain(each))[0].snapshot.hashes == hashes(7)

    subscribed(scenario)


def test_the_number_of_routers_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(reports_module, "MAX_ROUTERS", 1)

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        with pytest.raises(Overloaded), worker.log.subscribe():
            pass

    subscribed(scenario)


def test_serving_ends_when_the_log_is_closed() -> None:
    async def main() -> None:
        worker = Worker()
        ours, theirs = memory_stream_pair()
        await theirs.write(worker_pb2.ReportAck(protocol=PROTOCOL_VERSION))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_reports(ours, worker.log))
            assert (await theirs.read()).register.worker_id == "decode-0"
            worker.log.close()

    run_virtual(main())


def test_serving_ends_when_the_router_leaves() -> None:
    async def main() -> None:
        worker = Worker()
        ours, theirs = memory_stream_pair()
        await theirs.write(worker_pb2.ReportAck(protocol=PROTOCOL_VERSION))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_reports(ours, worker.log))
            await theirs.read()
            theirs.cancel()
        with pytest.raises(StreamLost):
            await ours.write(worker_pb2.Report())

    run_virtual(main())


@pytest.mark.parametrize(("boot_epoch", "is_known"), [(7, True), (8, False)])
def test_a_router_goes_on_only_with_the_process_that_it_knows(
    boot_epoch: int, is_known: bool
) -> None:
    async def main() -> None:
        worker = Worker()
        worker.log.register.boot_epoch = 7
        ours, theirs = memory_stream_pair()
        place = worker_pb2.KvPlace(boot_epoch=boot_epoch)
        await theirs.write(worker_pb2.ReportAck(protocol=PROTOCOL_VERSION, resume=place))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_reports(ours, worker.log))
            await theirs.read()
            assert worker.num_snapshots_asked == (not is_known)
            worker.log.close()

    run_virtual(main())


def test_a_newer_router_is_told_the_same_and_its_additions_are_left_aside() -> None:
    async def main() -> None:
        worker = Worker()
        ours, theirs = memory_stream_pair()
        await theirs.write(from_the_future(worker_pb2.ReportAck(protocol=9, router_id="r")))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_reports(ours, worker.log))
            assert (await theirs.read()).register.worker_id == "decode-0"
            await theirs.write(from_the_future(worker_pb2.ReportAck(seq=1)))
            worker.answer(hashes(7))
            while not (report := await theirs.read()).HasField("snapshot"):
                assert report.HasField("load")
            assert report.snapshot.hashes == hashes(7)
            worker.log.close()

    run_virtual(main())


def test_a_router_of_a_protocol_too_old_is_refused_naming_both() -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        await theirs.write(worker_pb2.ReportAck(router_id="router-7"))
        with pytest.raises(Incompatible, match=r"router-7.*speaks"):
            await serve_reports(ours, Worker().log)

    run_virtual(main())


def test_each_load_says_what_the_worker_did_with_its_time_until_now() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        uptimes = []
        for uptime_us in (5, 7):
            worker.log.totals = partial(router_pb2.EngineTotals, uptime_us=uptime_us)
            [report] = await drain(subscription)
            uptimes.append(report.load.totals.uptime_us)
        assert uptimes == [5, 7]

    subscribed(scenario)


def test_a_worker_that_leaves_says_last_what_it_did_until_then() -> None:
    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        await after_start(worker, subscription)
        worker.log.totals = partial(router_pb2.EngineTotals, uptime_us=7)
        worker.log.close()
        [last] = await drain(subscription)
        assert last.load.totals.uptime_us == 7
        assert await drain(subscription) == []

    subscribed(scenario)


def test_adapters_are_told_to_each_router_and_again_when_they_change() -> None:
    served = [worker_pb2.AdapterList(), worker_pb2.AdapterList()]

    async def scenario(worker: Worker, subscription: ReportSubscription) -> None:
        worker.log.serve_adapters(served[0])
        await after_start(worker, subscription)
        assert "adapters" not in kinds(await drain(subscription))
        worker.log.serve_adapters(served[1])
        assert "adapters" in kinds(await drain(subscription))
        with worker.log.subscribe() as other:
            assert kinds(await drain(other)) == ["register"]
            worker.answer()
            assert kinds(await drain(other))[:2] == ["adapters", "snapshot"]

    subscribed(scenario)
