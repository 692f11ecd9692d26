"""`baton trace`: the last requests as a table, and why a request has no trace."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from baton.cli import __main__ as cli
from baton.cli import trace
from baton.localstack.home import Home, StackState
from baton.page.span_store import SpanStore, StoredSpan
from baton.wire.usage_log import UsageLine

MS = 1_000_000


def request(number: int, tenant: str, ms: int, failed: bool = False) -> StoredSpan:
    attributes = {"baton.tenant": tenant, "baton.outcome": "stop", "gen_ai.request.model": "demo"}
    times = (number * 10_000 * MS, number * 10_000 * MS + ms * MS)
    return StoredSpan(
        f"t{number}", "a", "", f"req_{number}", "gateway", "chat demo", *times, failed,
        attributes,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A stopped stack's folder with the spans of four requests."""
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    made = Home(tmp_path)
    made.create()
    rows = ((1, "a", 40), (2, "b", 900), (3, "a", 7), (4, "a", 60))
    with SpanStore(made.spans) as store:
        store.add([request(n, tenant, ms, failed=n == 3) for n, tenant, ms in rows])
    return made


def baton(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "trace", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [4, 3, 2, 1]),
        (("--last", "2"), [4, 3]),
        (("--slow",), [2, 4, 1, 3]),
        (("--failed",), [3]),
        (("--tenant", "a", "--slow", "--last", "1"), [4]),
        (("--tenant", "nobody"), []),
    ],
)
def test_requests_are_listed_as_they_are_asked_for(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    expected: list[int],
) -> None:
    assert baton(monkeypatch, *words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1] for row in rows] == [f"req_{number}" for number in expected]
    assert baton(monkeypatch, *words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["request_id"] for row in told] == [f"req_{number}" for number in expected]


def test_one_request_is_told_to_programs_too(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baton(monkeypatch, "req_2", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["spans"][0]["duration_ms"] == 900


def test_an_id_that_nobody_knows_and_one_whose_spans_are_gone_are_told_apart(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = UsageLine("a", "req_old", "key_1", "demo", 1_790_000_000_000, 1, 1, "stop")
    (home.usage / line.file_name).write_bytes(msgspec.json.encode(line) + b"\n")
    assert baton(monkeypatch, "req_new") == 1
    assert "nobody knows a request req_new" in capsys.readouterr().err
    assert baton(monkeypatch, "req_old") == 1
    assert "req_old ended on 2026-09-2" in capsys.readouterr().err


def test_an_open_request_is_said_to_be_open(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"request_id": "req_9", "age_s": 12.0, "stage": "queue"}
    monkeypatch.setattr(trace.Scraper, "open_requests", lambda *_: [row])
    state = StackState(1, "http://127.0.0.1:1/v1")
    assert "open for 12 s, now in queue" in trace._why_none(home, state, "req_9")
