"""`baton usage` adds up what the archive says, each request once, and compares it with uptime."""

import csv
import json
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from baton.cli.__main__ import main
from baton.cli.usage import UsageRefused, bill, difference_us
from baton.cli.usage_sums import Period, sum_workers
from baton.wire import usage_log, worker_log
from baton.wire.usage_log import UsageLine
from baton.wire.worker_log import WorkerLine

DAY = date(2027, 1, 15)
NOON_MS = int(datetime(2027, 1, 15, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000


def write_usage(folder: Path, request_id: str, at_ms: int = NOON_MS, **fields: Any) -> None:
    defaults: dict[str, Any] = {
        "tenant": "acme",
        "key_id": "key_1",
        "model": "m",
        "num_prompt_tokens": 10,
        "num_output_tokens": 5,
        "finish_reason": "stop",
        "prefill_us": 300,
        "decode_us": 700,
    }
    line = UsageLine(request_id=request_id, settled_unix_ms=at_ms, **(defaults | fields))
    folder.mkdir(exist_ok=True)
    with (folder / line.file_name).open("ab") as file:
        file.write(usage_log.encode(line))


def write_worker(folder: Path, at_ms: int, uptime_us: int, busy_us: int, **fields: Any) -> None:
    defaults: dict[str, Any] = {
        "worker_id": "d0",
        "boot_epoch": 1,
        "role": "decode",
        "model": "m",
        "unbilled_us": 0,
    }
    line = WorkerLine(at_unix_ms=at_ms, uptime_us=uptime_us, busy_us=busy_us, **(defaults | fields))
    folder.mkdir(exist_ok=True)
    with (folder / line.file_name).open("ab") as file:
        file.write(worker_log.encode(line))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    def run_with(*arguments: str) -> int:
        command = ["baton", "usage", "--archive", str(tmp_path), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as caught:
            main()
        assert isinstance(caught.value.code, int)
        return caught.value.code

    return run_with


def usage_rows(folder: Path, *group_by: str, **options: Any) -> list[dict[str, Any]]:
    rows, _ = bill([folder], Period(), group_by, **options)
    return [row for row in rows if row["line"] == "usage"]


def test_a_request_counts_once_with_its_final_line(tmp_path: Path) -> None:
    write_usage(tmp_path, "r1", provisional=True, num_output_tokens=1, prefill_us=0, decode_us=0)
    write_usage(tmp_path, "r1", num_output_tokens=5)
    write_usage(tmp_path, "r1", num_output_tokens=5)
    write_usage(tmp_path, "r1", provisional=True, num_output_tokens=99)
    write_usage(tmp_path, "r1", tenant="other", num_output_tokens=7)
    acme, other = usage_rows(tmp_path, "tenant")
    assert (acme["tenant"], acme["requests"], acme["output_tokens"]) == ("acme", 1, 5)
    assert (acme["engine_us"], acme["prefill_us"], acme["decode_us"]) == (1000, 300, 700)
    assert (other["tenant"], other["requests"], other["output_tokens"]) == ("other", 1, 7)


def test_archives_of_several_replicas_are_one(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        write_usage(folder, "r1")
    write_usage(folders[1], "r2")
    [row], _ = bill(folders, Period(), ())
    assert row["requests"] == 2


def test_lines_are_grouped_by_what_was_asked_for(tmp_path: Path) -> None:
    write_usage(tmp_path, "r1", wasted_us={"cancelled": 100, "preempted": 20})
    write_usage(tmp_path, "r2", key_id="key_2", kv_byte_ms=3 * 2**30 * 1000, cost=1_250_000_000)
    write_usage(tmp_path, "r3", at_ms=NOON_MS + 24 * HOUR_MS, model="n")
    by_day = usage_rows(tmp_path, "day", "model")
    found = [(row["day"], row["model"], row["requests"]) for row in by_day]
    assert found == [("2027-01-15", "m", 2), ("2027-01-16", "n", 1)]
    first, second = usage_rows(tmp_path, "key")
    assert (first["cancelled_us"], first["migrated_us"], first["preempted_us"]) == (100, 0, 20)
    assert (second["kv_gib_s"], second["cost"]) == (3.0, 1.25)


def test_a_bill_of_some_days_knows_what_the_next_day_says_of_their_requests(tmp_path: Path) -> None:
    write_usage(tmp_path, "r1", provisional=True)
    write_usage(tmp_path, "r1", at_ms=NOON_MS + 24 * HOUR_MS)
    write_usage(tmp_path, "r2")
    counts = []
    for day in (DAY, DAY + timedelta(days=1), DAY + timedelta(days=2)):
        rows, _ = bill([tmp_path], Period(day, day), ())
        counts.append(sum(int(row["requests"]) for row in rows))
    assert counts == [1, 1, 0]


def test_the_time_of_workers_is_split_at_midnight(tmp_path: Path) -> None:
    midnight_ms = NOON_MS + 12 * HOUR_MS
    hour_us = HOUR_MS * 1000
    write_worker(tmp_path, midnight_ms - HOUR_MS, uptime_us=hour_us, busy_us=hour_us // 2)
    write_worker(tmp_path, midnight_ms + HOUR_MS, uptime_us=3 * hour_us, busy_us=hour_us)
    # Another life, of the same worker, on the second day alone.
    write_worker(tmp_path, midnight_ms + 2 * HOUR_MS, hour_us // 2, 7, boot_epoch=2, unbilled_us=3)
    first, second = sum_workers([tmp_path], Period()).values()
    assert (first.uptime_us, first.busy_us, first.unbilled_us) == (2 * hour_us, hour_us * 3 // 4, 0)
    assert second.uptime_us == hour_us + hour_us // 2
    assert second.busy_us == hour_us // 4 + 7
    assert second.unbilled_us == 3
    [alone] = sum_workers([tmp_path], Period(DAY, DAY)).values()
    assert alone == first


def test_lines_of_a_worker_may_be_lost_repeated_and_out_of_order(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for minute in (30, 10, 20, 30):
        for folder in folders:
            write_worker(folder, NOON_MS + minute * 60_000, minute * 60_000_000, minute)
    [time] = sum_workers(folders, Period()).values()
    assert (time.uptime_us, time.busy_us) == (30 * 60_000_000, 30)


def test_usage_idle_and_unbilled_add_up_to_the_uptime(tmp_path: Path) -> None:
    write_usage(tmp_path, "r1")
    write_usage(tmp_path, "r2", tenant="other")
    write_worker(tmp_path, NOON_MS, 10_000, 2_100, unbilled_us=60)
    rows, fleet = bill([tmp_path], Period(), ("tenant",))
    assert sum(int(row["engine_us"]) for row in rows) == fleet.uptime_us == 10_000
    assert {row["line"]: row["engine_us"] for row in rows[2:]} == {
        "idle": 7_900,
        "unbilled": 60,
        "difference": 40,
    }
    assert difference_us(rows) == 40


def test_with_days_each_day_has_its_own_idle_time(tmp_path: Path) -> None:
    write_usage(tmp_path, "r1")
    write_worker(tmp_path, NOON_MS, 10_000, 1_000)
    write_worker(tmp_path, NOON_MS + 24 * HOUR_MS, 5_000, 0, boot_epoch=2)
    rows, _ = bill([tmp_path], Period(), ("day", "tenant"))
    idle = {row["day"]: row["engine_us"] for row in rows if row["line"] == "idle"}
    assert idle == {"2027-01-15": 9_000, "2027-01-16": 5_000}


def test_one_tenants_bill_has_nothing_of_others(tmp_path: Path) -> None:
    write_usage(tmp_path, "r1")
    write_usage(tmp_path, "r2", tenant="other")
    write_worker(tmp_path, NOON_MS, 10_000, 2_000)
    rows, _ = bill([tmp_path], Period(), (), tenant="other")
    assert [(row["line"], row["requests"]) for row in rows] == [("usage", 1)]


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "usage-2027-01-15.jsonl").write_bytes(b"{}\n")
    with pytest.raises(UsageRefused, match=r"usage-2027-01-15\.jsonl"):
        bill([tmp_path], Period(), ())


def test_the_check_fails_when_more_than_a_hundredth_differs(
    tmp_path: Path, run: Callable[..., int], capsys: Any
) -> None:
    write_usage(tmp_path, "r1")
    assert run("--check") == 2
    assert "no line of a worker" in capsys.readouterr().err
    write_worker(tmp_path, NOON_MS, 10_000, 1_100)
    assert run("--check") == 0
    assert "adds up: 1.00% of 0 s" in capsys.readouterr().err
    write_usage(tmp_path, "r2")
    assert run("--check") == 1
    assert "DOES NOT ADD UP: -9.00%" in capsys.readouterr().err


def test_table_csv_and_json_say_the_same(
    tmp_path: Path, run: Callable[..., int], capsys: Any
) -> None:
    write_usage(tmp_path, "r1", prefill_us=1_500_000, decode_us=500_000)
    assert run() == 0
    header, row = capsys.readouterr().out.splitlines()
    cells = dict(zip(header.split(), row.split(), strict=True))
    assert (cells["tenant"], cells["engine_s"], cells["prefill_s"]) == ("acme", "2.000", "1.500")
    assert run("--format", "csv") == 0
    [from_csv] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (from_csv["tenant"], from_csv["engine_us"]) == ("acme", "2000000")
    file = tmp_path / "bill.json"
    assert run("--format", "json", "--output", str(file)) == 0
    [from_json] = json.loads(file.read_text())
    assert {name: str(value) for name, value in from_json.items()} == from_csv


def test_parquet_without_pyarrow_is_refused_in_words(
    tmp_path: Path, run: Callable[..., int], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    write_usage(tmp_path, "r1")
    assert run("--format", "parquet") == 2
    assert "pip install pyarrow" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("--group-by", "month"), ("--since", "yesterday"), ("--check", "--tenant", "acme")],
)
def test_what_cannot_be_answered_is_refused(
    arguments: tuple[str, ...], run: Callable[..., int]
) -> None:
    assert run(*arguments) == 2


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, run: Callable[..., int]) -> None:
    assert run("--archive", str(tmp_path / "none")) == 2
