"""The local web page's answers: what it tells, and to whom."""

import json
import os
import urllib.error
import urllib.request

import pytest

from baton.localstack.home import Home
from baton.localstack.web import guard

JSON = {"Content-Type": "application/json"}


def get(url: str):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def status_of(url: str, method: str = "GET", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = b"{}" if method == "POST" else None
    asked = urllib.request.Request(url, body, named, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def test_the_fleet_its_requests_and_a_waterfall_are_told(page: str) -> None:
    look = get(f"{page}/api/fleet?window=60")
    assert look["fleet"]["workers"][0]["num_running"] == 3
    assert look["fleet"]["workers"][0]["kv_share"] == 0.25
    assert look["pictures"]["decode-1"]["num_blocks"] == 200
    assert look["requests"][0]["request_id"] == "req-open"
    found = get(f"{page}/api/requests")
    took_s = {row["request_id"]: row["seconds"] for row in found["rows"]}
    assert took_s["req-done"] == 0.1
    workers = {row["request_id"]: (row["prefill"], row["workers"]) for row in found["rows"]}
    assert workers["req-done"] == (["prefill-1"], ["decode-1"])
    done = get(f"{page}/api/requests/req-done")
    assert [(each["name"], each["kind"]) for each in done["spans"]] == [
        ("chat demo", "request"), ("decode", "decode"),
        ("prefill", "prefill"), ("prefill.compute", "prefill.compute"),
    ]  # fmt: skip


def test_envoy_is_up_though_its_metrics_are_elsewhere(page: str) -> None:
    assert get(f"{page}/api/fleet")["fleet"]["others"] == {"envoy": True}


def test_requests_are_found_by_what_they_were(page: str) -> None:
    def ids(query: str) -> list[str]:
        return [row["request_id"] for row in get(f"{page}/api/requests?{query}")["rows"]]

    assert ids("slower=1") == ["req-moved"]
    assert ids("text=req-do") == ["req-done"]
    assert ids("worker=decode-2") == ["req-moved"]
    assert ids("model=another") == []
    assert status_of(f"{page}/api/requests?slower=slow") == 400


def test_an_unknown_a_running_an_expired_and_an_ended_request_are_told_apart(
    page: str, home: Home
) -> None:
    home.usage.mkdir(exist_ok=True)
    (home.usage / "usage-2026-11-28.jsonl").write_text('{"request_id":"req-old"}\n')
    states = {
        name: get(f"{page}/api/requests/{name}")["state"]
        for name in ("req-done", "req-open", "req-old", "req-never")
    }
    assert states == {
        "req-done": "ended", "req-open": "running", "req-old": "expired", "req-never": "unknown",
    }  # fmt: skip


def test_another_host_name_is_refused(page: str) -> None:
    assert status_of(f"{page}/api/fleet", Host="evil.example") == 400


def test_only_the_page_itself_may_change_anything(page: str) -> None:
    kill = f"{page}/api/workers/decode-1/kill"
    own = {"Origin": page, **JSON}
    assert status_of(kill, "POST", **JSON) == 403
    assert status_of(kill, "POST", **{**own, "Origin": "http://evil.example"}) == 403
    assert status_of(kill, "POST", **{**own, "Content-Type": "text/plain"}) == 403
    # Let through; but the process of that name is no child of the supervisor.
    assert status_of(kill, "POST", **own) == 404


def test_a_log_is_told_of_services_only(page: str, home: Home) -> None:
    (home.logs / "decode-1.log").write_text("one\ntwo\n")
    assert get(f"{page}/api/logs/decode-1") == {"lines": ["one", "two"]}
    assert status_of(f"{page}/api/logs/..%2Fsecret") == 404


@pytest.mark.parametrize(("row", "owner"), [("01", 1000), ("06", None), ("05", None)])
def test_a_caller_is_known_by_its_open_socket_alone(row: str, owner: int | None) -> None:
    rows = [
        f"  0: 0100007F:D431 0100007F:1F91 {row} 00000000:00000000 00:00000000 00000000  1000 0 1",
        "  1: 0100007F:1F91 0100007F:D431 01 00000000:00000000 00:00000000 00000000  7 0 2",
    ]
    assert guard.owner_of(rows, "127.0.0.1", 0xD431, 0x1F91) == owner


def test_another_user_of_the_machine_is_not_answered(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(page.rpartition(":")[2])
    monkeypatch.setattr(guard, "owner_of", lambda *_: os.getuid() + 1)
    assert not guard.belongs_to_user("127.0.0.1", 1, port)
    monkeypatch.setattr(guard, "owner_of", lambda *_: None)
    assert not guard.belongs_to_user("127.0.0.1", 1, port)
