"""Usage streams end up in files, each request once."""

import json

import pytest

from baton.wire import usage_log
from baton.wire.failures import Unavailable
from services.quota.archive import LOCK_KEY, UNARCHIVED_KEY, Archiver
from services.quota.usage_files import REJECTED_FILE, UsageFiles


async def run_inline(work):
    work()


def archiver(bench, folder, token="a"):
    archive = Archiver(bench.store, folder, token=token, run_blocking=run_inline)
    bench.listeners.append(archive.wake)
    return archive


def lines(folder):
    return [line for file in usage_log.files(folder) for line in usage_log.read_file(file)]


async def lock_expires(bench):
    """The archiver that held it has died."""
    await bench.store.execute("DEL", LOCK_KEY)


async def finish(bench, key, *request_ids):
    for request_id in request_ids:
        await bench.reserve(key, request_id)
        await bench.settle(key, request_id)


async def test_settled_requests_are_archived_once_and_leave_redis(bench, tmp_path):
    key = await bench.new_key()
    await finish(bench, key, "r1", "r2")
    archive = archiver(bench, tmp_path / "usage")
    assert await archive.archive_all()
    assert await archive.archive_all()
    found = lines(tmp_path / "usage")
    assert [line.request_id for line in found] == ["r1", "r2"]
    assert (found[0].num_prompt_tokens, found[0].num_output_tokens) == (10, 20)
    assert found[0].key_id == key.key_id
    assert await bench.num_stream_entries() == 0


async def test_more_entries_than_a_batch_are_archived_in_one_round(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("services.quota.archive._ENTRIES_OF_TENANT", 5)
    key = await bench.new_key()
    await finish(bench, key, *(f"r{number}" for number in range(12)))
    await archiver(bench, tmp_path).archive_all()
    assert len(lines(tmp_path)) == 12
    assert await bench.num_stream_entries() == 0


async def test_entries_that_a_crash_left_in_redis_are_not_written_twice(bench, tmp_path):
    key = await bench.new_key()
    await finish(bench, key, "r1")
    dump = await bench.store.execute("DUMP", "baton:{acme}:usage")
    await archiver(bench, tmp_path).archive_all()
    await bench.store.execute("DEL", "baton:{acme}:usage")
    await bench.store.execute("RESTORE", "baton:{acme}:usage", 0, dump)
    await lock_expires(bench)
    await finish(bench, key, "r2")
    await archiver(bench, tmp_path).archive_all()
    assert [line.request_id for line in lines(tmp_path)] == ["r1", "r2"]
    assert await bench.num_stream_entries() == 0


async def test_same_request_id_of_two_tenants_is_two_requests(bench, tmp_path):
    for tenant in ("acme", "other"):
        await finish(bench, await bench.new_key(tenant), "r1")
    await archiver(bench, tmp_path).archive_all()
    assert sorted(line.tenant for line in lines(tmp_path)) == ["acme", "other"]


async def test_lapsed_request_is_billed_what_was_produced_until_it_settles(bench, tmp_path):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    await bench.renew(key, "r1", used=40, produced=25)
    bench.pass_time(31)
    await bench.ledger.reap()
    archive = archiver(bench, tmp_path)
    await archive.archive_all()
    [record] = usage_log.final_lines(lines(tmp_path))
    assert (record.num_output_tokens, record.provisional) == (25, True)
    assert record.finish_reason == "lease_expired"
    await bench.settle(key, "r1", output=30)
    await archive.archive_all()
    [record] = usage_log.final_lines(lines(tmp_path))
    assert (record.num_output_tokens, record.provisional) == (30, False)


async def test_only_the_holder_of_the_lock_archives(bench, tmp_path):
    key = await bench.new_key()
    await finish(bench, key, "r1")
    first, second = archiver(bench, tmp_path, "a"), archiver(bench, tmp_path, "b")
    assert await first.archive_all()
    assert not await second.archive_all()
    await lock_expires(bench)
    await finish(bench, key, "r2")
    assert await second.archive_all()
    assert not await first.archive_all()
    assert [line.request_id for line in lines(tmp_path)] == ["r1", "r2"]


async def test_record_of_a_tenant_that_no_registry_declares_is_archived(bench, tmp_path):
    key = await bench.new_key("acme")
    await bench.settle(key, "r1", tenant="lost")
    archive = archiver(bench, tmp_path)
    archive.wake("lost")
    await archive.archive_all()
    assert [line.tenant for line in lines(tmp_path)] == ["lost"]


async def test_unreadable_entry_is_set_aside_and_does_not_stop_the_others(bench, tmp_path):
    key = await bench.new_key()
    await bench.store.execute("XADD", "baton:{acme}:usage", "*", "record", b"\xff\xff\xff")
    await bench.store.execute("XADD", "baton:{acme}:usage", "*", "other", "x")
    await finish(bench, key, "r1")
    await archiver(bench, tmp_path).archive_all()
    assert [line.request_id for line in lines(tmp_path)] == ["r1"]
    rejected = (tmp_path / REJECTED_FILE).read_text().splitlines()
    assert [json.loads(line) for line in rejected] == [{"record": "ffffff"}, {"other": "78"}]


async def test_records_stay_in_redis_while_the_disk_refuses_them(bench, tmp_path):
    key = await bench.new_key()
    await finish(bench, key, "r1")
    folder = tmp_path / "usage"
    folder.write_text("a file in the way")
    archive = archiver(bench, folder)
    with pytest.raises(OSError):
        await archive.archive_all()
    assert await bench.num_stream_entries() == 1
    folder.unlink()
    await archive.archive_all()
    assert len(lines(folder)) == 1


async def test_record_whose_write_failed_is_written_by_the_next_round(bench, tmp_path, monkeypatch):
    key = await bench.new_key()
    await finish(bench, key, "r1")
    archive = archiver(bench, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(UsageFiles, "_write", _no_space)
        with pytest.raises(OSError):
            await archive.archive_all()
    await archive.archive_all()
    assert [line.request_id for line in usage_log.final_lines(lines(tmp_path))] == ["r1"]
    assert await bench.num_stream_entries() == 0


def _no_space(*arguments):
    raise OSError(28, "No space left on device")


async def test_torn_line_is_cut_before_more_is_appended(bench, tmp_path):
    key = await bench.new_key()
    await finish(bench, key, "r1")
    await archiver(bench, tmp_path).archive_all()
    [file] = usage_log.files(tmp_path)
    with file.open("ab") as out:
        out.write(b'{"tenant":"ac')
    await lock_expires(bench)
    await finish(bench, key, "r2")
    await archiver(bench, tmp_path).archive_all()
    assert [line.request_id for line in lines(tmp_path)] == ["r1", "r2"]


async def test_corrupt_stream_of_one_tenant_does_not_stop_the_others(bench, tmp_path):
    await bench.new_key("a-sick")
    await bench.store.execute("SET", "baton:{a-sick}:usage", "nonsense")
    await finish(bench, await bench.new_key("well"), "r1")
    await archiver(bench, tmp_path).archive_all()
    assert [line.tenant for line in lines(tmp_path)] == ["well"]


async def test_memory_of_seen_requests_is_bounded(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("services.quota.usage_files._MAX_REMEMBERED", 3)
    key = await bench.new_key()
    await finish(bench, key, *(f"r{number}" for number in range(5)))
    await archiver(bench, tmp_path).archive_all()
    assert len(UsageFiles(tmp_path)._seen) == 3


async def test_outage_of_redis_is_the_callers_to_wait_out(bench, tmp_path):
    archive = archiver(bench, tmp_path)

    async def gone(*command):
        raise Unavailable("gone")

    bench.store.execute = gone
    with pytest.raises(Unavailable):
        await archive.archive_all()
    await archive._round()


class Counting:
    """A store that counts its commands."""

    def __init__(self, store):
        self._store = store
        self.num_calls = 0

    async def execute(self, *command):
        self.num_calls += 1
        return await self._store.execute(*command)

    async def execute_all(self, commands):
        commands = list(commands)
        self.num_calls += len(commands)
        await self._store.execute_all(commands)

    async def run_script(self, *arguments):
        self.num_calls += 1
        return await self._store.run_script(*arguments)


async def test_a_round_costs_nothing_for_idle_tenants(bench, tmp_path):
    await bench.new_tenants(*(f"idle-{number}" for number in range(100)))
    archive = archiver(bench, tmp_path)
    await archive.archive_all()
    archive._store = counting = Counting(bench.store)
    await archive.archive_all()
    assert counting.num_calls <= 4


async def test_what_an_archiver_took_with_it_is_found_by_its_successor(bench, tmp_path):
    key = await bench.new_key()
    first = archiver(bench, tmp_path, "a")
    await first.archive_all()
    await finish(bench, key, "r1")
    await first._tell_woken()
    assert await bench.store.execute("SPOP", UNARCHIVED_KEY, 10) == [b"acme"]
    bench.listeners.clear()
    await lock_expires(bench)
    await archiver(bench, tmp_path, "b").archive_all()
    assert [line.request_id for line in lines(tmp_path)] == ["r1"]


async def test_a_record_is_archived_by_the_holder_of_the_lock_although_another_replica_settled_it(
    bench, tmp_path
):
    key = await bench.new_key()
    holder, other = archiver(bench, tmp_path, "a"), archiver(bench, tmp_path, "b")
    await holder.archive_all()
    bench.listeners.remove(holder.wake)
    await finish(bench, key, "r1")
    assert not await other.archive_all()
    await holder.archive_all()
    assert [line.request_id for line in lines(tmp_path)] == ["r1"]


async def test_the_lock_is_renewed_while_a_long_round_runs(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("services.quota.archive._TENANTS_PER_BATCH", 3)
    for number in range(10):
        await finish(bench, await bench.new_key(f"tenant-{number}"), "r1")
    archive = archiver(bench, tmp_path)
    num_written = 0

    async def nearly_expires(work):
        nonlocal num_written
        num_written += 1
        work()
        assert await bench.store.execute("PEXPIRE", LOCK_KEY, 40)

    archive._run_blocking = nearly_expires
    assert await archive.archive_all()
    assert num_written == 4
    assert await bench.store.execute("PTTL", LOCK_KEY) > 1000
    assert len(lines(tmp_path)) == 10
