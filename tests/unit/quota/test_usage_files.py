"""The archive's files: memory stays bounded however large they are."""

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from baton.wire import usage_log
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Entries, KeyRecord
from baton.wire.usage_log import UsageLine
from services.quota.restore import Spent, spent_of_budgets
from services.quota.usage_files import UsageFiles

# 2027-01-15 08:00:00 UTC
NOW_MS = 1_800_000_000_000
NUM_LINES = 20_000
MIB = 1024 * 1024
KEY = KeyRecord(
    key_id="key_1",
    tenant="acme",
    digest="0" * 64,
    shown="",
    created_unix_s=0,
    limits=KeyLimits(budget_tokens=10**9, budget_period="month"),
)


def line(number: int, *, provisional: bool = False, num_output_tokens: int = 5) -> UsageLine:
    return UsageLine(
        tenant="acme",
        request_id=f"request-{number:08d}.0123456789abcdef",
        key_id="key_1",
        model="a-model-with-a-long-name",
        settled_unix_ms=NOW_MS,
        num_prompt_tokens=10,
        num_output_tokens=num_output_tokens,
        finish_reason="stop",
        stages_us={f"stage_{index}": index for index in range(12)},
        provisional=provisional,
    )


@pytest.fixture
def large_archive(tmp_path: Path) -> Path:
    """A file of about 10 MiB: ten times what may be held of it."""
    with (tmp_path / "usage-2027-01-15.jsonl").open("wb") as file:
        for number in range(NUM_LINES):
            file.write(usage_log.encode(line(number)))
    return tmp_path


def spent_in(folder: Path) -> list[Spent]:
    return spent_of_budgets(Entries({KEY.key_id: KEY}), folder, NOW_MS, NOW_MS + 1)


def peak_bytes(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_archive_is_opened_in_little_memory(large_archive, monkeypatch):
    monkeypatch.setattr("services.quota.usage_files._MAX_REMEMBERED", 1000)
    monkeypatch.setattr("services.quota.usage_files._BYTES_REMEMBERED", MIB)
    assert peak_bytes(lambda: UsageFiles(large_archive)) < MIB


def test_what_a_large_archive_ends_with_is_remembered(large_archive, monkeypatch):
    monkeypatch.setattr("services.quota.usage_files._BYTES_REMEMBERED", MIB)
    files = UsageFiles(large_archive)
    assert files.append([line(NUM_LINES - 1), line(NUM_LINES - 500), line(NUM_LINES)]) == 1


def test_budgets_are_restored_from_a_large_archive_in_little_memory(large_archive, monkeypatch):
    monkeypatch.setattr("services.quota.restore._MAX_REMEMBERED", 1000)
    spent = []
    assert peak_bytes(lambda: spent.extend(spent_in(large_archive))) < MIB
    assert spent == [Spent("baton:{acme}", "key_1", "m202701", NUM_LINES * 15)]


def test_a_torn_line_longer_than_a_chunk_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("services.quota.usage_files._CHUNK_BYTES", 7)
    path = tmp_path / "usage-2027-01-15.jsonl"
    path.write_bytes(usage_log.encode(line(1)) + usage_log.encode(line(2))[:-3])
    UsageFiles(tmp_path)
    assert path.read_bytes() == usage_log.encode(line(1))


def test_a_file_of_one_torn_line_becomes_empty(tmp_path):
    path = tmp_path / "usage-2027-01-15.jsonl"
    path.write_bytes(usage_log.encode(line(1))[:-1])
    UsageFiles(tmp_path)
    assert path.read_bytes() == b""


def test_a_final_line_replaces_what_a_lapsed_lease_was_counted_with(tmp_path):
    lines = [line(1, provisional=True, num_output_tokens=40), line(1), line(1), line(2)]
    path = tmp_path / "usage-2027-01-15.jsonl"
    path.write_bytes(b"".join(map(usage_log.encode, [*lines, line(2, provisional=True)])))
    assert spent_in(tmp_path) == [Spent("baton:{acme}", "key_1", "m202701", 30)]


def test_the_end_of_a_file_begins_with_a_whole_line(tmp_path):
    path = tmp_path / "usage-2027-01-15.jsonl"
    encoded = [usage_log.encode(line(number)) for number in range(3)]
    path.write_bytes(b"".join(encoded))
    two = len(encoded[1]) + len(encoded[2])
    for num_bytes, expected in ((two, 2), (two + 1, 2), (two - 1, 1), (10**6, 3), (1, 0)):
        assert len(list(usage_log.read_file(path, num_bytes))) == expected
    with pytest.raises(msgspec.MsgspecError):
        path.write_bytes(b"nonsense\n")
        list(usage_log.read_file(path))
