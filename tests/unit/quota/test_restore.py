"""A Redis that was lost gets back what budgets had spent, from the archives of all replicas."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.keys.redis_copy import publish
from baton.wire import failures, usage_log
from baton.wire.key_limits import KeyLimits, ModelLimits
from baton.wire.key_registry import LOADED_KEY, Entries, new_key, owner_limits
from baton.wire.usage_log import UsageLine
from services.quota.registry import Registry
from services.quota.restore import ArchivedBudgets, Spent, archive_id, spent_of_budgets, window_id
from tests.unit.quota.conftest import START_MS, read_inline

MONTH = "m202701"
DAY_MS = 86_400_000


def archive_line(folder: Path, key, request_id="r1", num_tokens=15, **changes):
    values = {
        "tenant": key.tenant, "request_id": request_id, "key_id": key.key_id, "model": "m",
        "settled_unix_ms": START_MS - 1000, "num_prompt_tokens": num_tokens,
        "num_output_tokens": 0, "finish_reason": "stop",
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    line = UsageLine(**(values | changes))
    with (folder / line.file_name).open("ab") as file:
        file.write(usage_log.encode(line))


class Replicas:
    """The registries of two replicas, each with an archive of its own."""

    def __init__(self, bench, folder: Path, num_archives: int = 2) -> None:
        self.folders = [folder / "a", folder / "b"]
        self.first, self.second = (
            Registry(
                bench.store,
                [(bench.file, read_inline)],
                budgets=ArchivedBudgets(
                    bench.store, own, num_archives, clock_ms=lambda: bench.now_ms[0]
                ),
            )
            for own in self.folders
        )
        bench.registry = self.first
        bench.ledger._registry = self.first


@pytest.fixture
def replicas(bench, tmp_path):
    return Replicas(bench, tmp_path)


async def new_hard_key(bench):
    return await bench.new_key(budget_tokens=10_000, budget_period="month", hard_budget=True)


async def lose_redis(bench):
    await bench.store.execute("FLUSHALL")


async def test_a_hard_budget_is_restored_from_the_archives_of_all_replicas(bench, replicas):
    key = await new_hard_key(bench)
    await replicas.second.refresh()
    archive_line(replicas.folders[0], key, "r1", 8500)
    archive_line(replicas.folders[1], key, "r2", 500)
    await lose_redis(bench)
    # The replica with the smaller part is the first to look.
    await replicas.second.refresh()
    with pytest.raises(failures.Unavailable) as refused:
        await bench.reserve(key, "r3", prompt=1000, output=0)
    assert refused.value.reason == "quota_unavailable"
    await replicas.first.refresh()
    assert await bench.budget(key, MONTH) == (9000, 0)
    await bench.reserve(key, "r4", prompt=1000, output=0)
    with pytest.raises(failures.LimitExceeded):
        await bench.reserve(key, "r5", prompt=1, output=0)


async def test_a_running_request_of_a_hard_budget_is_not_extended_until_all_is_known(
    bench, replicas
):
    key = await new_hard_key(bench)
    await replicas.second.refresh()
    await bench.reserve(key, "r1", prompt=10, output=90)
    state = await bench.renew(key, "r1", used=50, wanted=100)
    assert state.granted_output_tokens == 100
    await bench.store.execute("HSET", f"baton:{{acme}}:limits:{key.key_id}", "restoring", 1)
    assert (await bench.renew(key, "r1", used=50, wanted=200)).granted_output_tokens == 100


async def test_a_soft_budget_goes_on_with_the_parts_that_are_known(bench, replicas):
    key = await bench.new_key(budget_tokens=10_000, budget_period="month")
    archive_line(replicas.folders[0], key, "r1", 8500)
    await lose_redis(bench)
    await replicas.second.refresh()
    await bench.reserve(key, "r2", prompt=10, output=0)
    await replicas.first.refresh()
    assert await bench.budget(key, MONTH) == (8500, 10)


async def test_each_part_is_added_once_however_often_replicas_start_and_look(bench, replicas):
    key = await new_hard_key(bench)
    archive_line(replicas.folders[0], key, "r1", 100)
    await lose_redis(bench)
    for _ in range(2):
        await replicas.first.refresh()
        await replicas.second.refresh()
    again = Replicas(bench, replicas.folders[0].parent)
    await again.first.refresh()
    await again.second.refresh()
    assert await bench.budget(key, MONTH) == (100, 0)


async def test_an_addition_that_was_cut_off_is_completed_and_not_repeated(bench, replicas):
    one, two = await new_hard_key(bench), await new_hard_key(bench)
    for key in (one, two):
        archive_line(replicas.folders[0], key, f"r-{key.key_id}", 100)
    await lose_redis(bench)
    run_script = bench.store.run_script

    async def goes_away(name, root, arguments):
        if name == "restore" and two.key_id in arguments:
            raise failures.Unavailable("gone")
        return await run_script(name, root, arguments)

    bench.store.run_script = goes_away
    with pytest.raises(failures.Unavailable):
        await replicas.first.refresh()
    bench.store.run_script = run_script
    await replicas.first.refresh()
    for key in (one, two):
        assert await bench.budget(key, MONTH) == (100, 0)


async def test_what_was_settled_after_the_loss_is_not_added_by_a_late_replica(bench, replicas):
    key = await bench.new_key(budget_tokens=10_000, budget_period="month")
    await lose_redis(bench)
    await replicas.second.refresh()
    bench.pass_time(10)
    await bench.settle(key, "r1", prompt=10, output=20)
    archive_line(replicas.folders[0], key, "r1", 30, settled_unix_ms=bench.now_ms[0])
    await replicas.first.refresh()
    assert await bench.budget(key, MONTH) == (30, 0)


async def test_a_declaration_that_came_too_late_is_mended(bench, replicas):
    key = await new_hard_key(bench)
    await replicas.second.refresh()
    # The first replica looked before the second one's part was there, and declares only now.
    limits = f"baton:{{acme}}:limits:{key.key_id}"
    await bench.store.execute("HSET", limits, "restoring", 1)
    assert await replicas.first.refresh()
    assert await bench.store.execute("HGET", limits, "restoring") == b"0"
    assert not await replicas.first.refresh()


async def test_redis_that_is_lost_again_is_restored_again(bench, replicas):
    key = await new_hard_key(bench)
    archive_line(replicas.folders[0], key, "r1", 100)
    for _ in range(3):
        await lose_redis(bench)
        await replicas.first.refresh()
        await replicas.second.refresh()
        assert await bench.store.execute("EXISTS", LOADED_KEY)
        assert await bench.budget(key, MONTH) == (100, 0)


def test_only_the_keys_own_tokens_of_the_current_window_are_summed(tmp_path):
    limits = KeyLimits(budget_tokens=50, budget_period="month")
    _, key = new_key(b"s" * 32, "acme", limits, now_unix_s=0)
    archive_line(tmp_path, key, "r1")
    archive_line(tmp_path, key, "r1")
    archive_line(tmp_path, key, "r0", started_unix_ms=START_MS - 20 * DAY_MS)
    archive_line(tmp_path, key, "r2", tenant="other")
    archive_line(tmp_path, key, "r3", settled_unix_ms=START_MS)
    entries = Entries({key.key_id: key})
    spent = spent_of_budgets(entries, tmp_path, START_MS, START_MS)
    assert spent == [Spent("baton:{acme}", key.key_id, MONTH, 15)]


def test_budgets_of_all_levels_of_models_and_of_money_are_restored(tmp_path):
    day = ModelLimits(budget_cost=9, cost_period="day")
    month = KeyLimits(
        budget_tokens=50, budget_period="month", budget_cost=9, cost_period="month",
        by_model={"m": day},
    )  # fmt: skip
    _, key = new_key(b"s" * 32, "bigco/search", KeyLimits(), now_unix_s=0)
    entries = Entries({key.key_id: key})
    entries.take(owner_limits("organisation", "bigco", month))
    entries.take(owner_limits("tenant", "bigco/search", KeyLimits(by_model={"m": day})))
    archive_line(tmp_path, key, "r1", 10, cost=7, provisional=True)
    archive_line(tmp_path, key, "r1", 15, cost=8)
    archive_line(tmp_path, key, "r2", 5, cost=1, model="other")
    archive_line(tmp_path, key, "r3", 5, cost=2, tenant="bigco/ads")
    assert set(spent_of_budgets(entries, tmp_path, START_MS, START_MS)) == {
        Spent("baton:{bigco}/", "-", MONTH, 25, 11),
        Spent("baton:{bigco}/", "-", "d20270115@m", 0, 10),
        Spent("baton:{bigco}/search", "-", "d20270115@m", 0, 8),
    }


async def test_a_tenants_hard_budget_of_money_waits_for_all_archives(bench, replicas):
    key = await bench.new_key("bigco/search")
    await bench.limit(
        "organisation", "bigco", budget_cost=100, cost_period="month", hard_budget=True
    )
    await replicas.second.refresh()
    archive_line(replicas.folders[0], key, "r1", 10, cost=100)
    await lose_redis(bench)
    await replicas.second.refresh()
    with pytest.raises(failures.Unavailable):
        await bench.reserve(key, "r2")
    await replicas.first.refresh()
    spent = await bench.store.execute("HGET", f"baton:{{bigco}}/:budget:-:{MONTH}", "cost_spent")
    assert spent == b"100"
    await bench.reserve(key, "r3")


def test_an_archive_keeps_its_name(tmp_path):
    assert archive_id(tmp_path / "a") == archive_id(tmp_path / "a")
    assert archive_id(tmp_path / "a") != archive_id(tmp_path / "b")


@pytest.mark.parametrize("is_corrupt", [True, False], ids=["corrupt", "no-folder"])
async def test_an_archive_that_cannot_be_read_stops_hard_budgets_and_no_other_key(
    bench, replicas, is_corrupt
):
    hard, plain = await new_hard_key(bench), await bench.new_key()
    if is_corrupt:
        archive_line(replicas.folders[1], hard)
        [file] = usage_log.files(replicas.folders[1])
        file.write_bytes(b"nonsense\n")
    else:
        replicas.folders[1].write_text("a file in the way")
    await lose_redis(bench)
    await replicas.second.refresh()
    await replicas.first.refresh()
    await bench.reserve(plain, "r1")
    with pytest.raises(failures.Unavailable):
        await bench.reserve(hard, "r2")


def test_replicas_that_share_a_folder_agree_on_its_name(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        names = set(threads.map(archive_id, [tmp_path / "a"] * 50))
    assert len(names) == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["archive-id"]


def test_window_ids_are_named_after_the_utc_calendar():
    assert window_id("day", START_MS) == "d20270115"
    assert window_id("month", START_MS) == "m202701"


async def test_a_hard_budget_that_is_written_by_hand_waits_for_all_archives(bench, replicas):
    key = await new_hard_key(bench)
    archive_line(replicas.folders[0], key, "r1", 9000)
    await lose_redis(bench)
    # Also before any replica has looked.
    for _ in range(2):
        await publish(bench.store.execute, [key])
        with pytest.raises(failures.Unavailable):
            await bench.reserve(key, "r2", prompt=1000, output=0)
        await replicas.second.refresh()
    await replicas.first.refresh()
    await publish(bench.store.execute, [key])
    await bench.reserve(key, "r3", prompt=1000, output=0)


async def test_a_hard_budget_that_is_written_while_the_last_archive_is_counted_is_open(
    bench, replicas
):
    key = await new_hard_key(bench)
    await lose_redis(bench)
    await replicas.second.refresh()
    moments = []

    async def execute(*command):
        """The last replica looks between the first look at the marker and the write."""
        if command[0] != "GET" and not moments:
            moments.append(await replicas.first.refresh())
        return await bench.store.execute(*command)

    await publish(execute, [key])
    assert moments == [True]
    await bench.reserve(key, "r1", prompt=1000, output=0)
