"""`baton logs`: the lines of several processes in one order."""

import json
from pathlib import Path

import pytest

from baton.cli.logs import Tail, chosen, is_problem, shown
from baton.localstack.home import Home
from baton.localstack.refusal import Refusal


def line(second: int, event: str, level: str = "info", **fields: object) -> str:
    at = f"2026-11-28T10:00:{second:02}.000Z"
    return json.dumps({"time": at, "level": level, "service": "x", "event": event, **fields})


def test_a_line_is_read_once_when_it_is_whole_and_a_log_may_begin_anew(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text(f"{line(1, 'first')}\nTraceback\n{line(2, 'half')[:20]}")
    tail = Tail(log)
    first, traceback = tail.read()
    # What no logger wrote stays behind the line before it.
    assert first[0] == traceback[0] != ""
    with log.open("a") as file:
        file.write(f"{line(2, 'half')[20:]}\n")
    [(_, name, text)] = tail.read()
    assert (name, json.loads(text)["event"]) == ("gateway", "half")
    assert tail.read() == []
    log.write_text(f"{line(3, 'x')}\n")
    assert [json.loads(row[2])["event"] for row in tail.read()] == ["x"]


def test_a_structured_line_is_shown_with_its_fields() -> None:
    text = line(5, "router_lost", "warning", router="127.0.0.1:1", reason="is away")
    told = shown(text, is_coloured=False)
    assert told == '10:00:05.000 warning router_lost  router=127.0.0.1:1 reason="is away"'
    assert is_problem(text)
    assert is_problem("Traceback (most recent call last):")
    assert not is_problem(line(1, "serving"))


def test_a_service_stands_for_its_replicas_and_a_wrong_name_gets_the_nearest(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    home.create()
    for name in ("decode-1", "decode-2", "gateway"):
        (home.logs / f"{name}.log").touch()
    assert [path.stem for path in chosen(home, ["decode"])] == ["decode-1", "decode-2"]
    assert len(chosen(home, [])) == 3
    with pytest.raises(Refusal, match="did you mean gateway"):
        chosen(home, ["gatway"])
