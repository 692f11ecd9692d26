"""The line that says how far a starting stack is."""

import io
from pathlib import Path

import pytest

from baton.cli.startup import LoadLogs, StartLine
from baton.system.load_progress import LoadStage, LoadTeller, stage_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stage_is_read_back_from_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    LoadTeller().tell(LoadStage("weights", 3, 12))
    told = stage_of(capsys.readouterr().err)
    assert told == LoadStage("weights", 3, 12)
    assert str(told) == "weights 3/12"
    assert stage_of('{"event": "loading"}') is None
    assert stage_of("loading_stage of something else") is None


def test_one_stage_is_not_told_more_often_than_people_can_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = LoadTeller()
    for number in range(1000):
        teller.tell(LoadStage("weights", number, 1000))
    teller.tell(LoadStage("warm-up"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) < 100
    assert stage_of(lines[-1]) == LoadStage("warm-up")


def test_the_wait_names_the_last_stage_of_each_worker_since_this_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "decode-1.log"
    LoadTeller().tell(LoadStage("warm-up"))
    log.write_text(capsys.readouterr().err)
    logs = LoadLogs(tmp_path, ["decode-1", "prefill-1"])
    assert logs.waiting_for("router not ready") == "decode-1, prefill-1: starting"
    LoadTeller().tell(LoadStage("weights", 4, 9))
    with log.open("a") as file:
        file.write(capsys.readouterr().err)
    assert logs.waiting_for("decode-1 not ready") == "decode-1: weights 4/9"
    assert logs.waiting_for("quota not ready") == "quota not ready"


def test_a_file_gets_a_line_when_something_changes_and_a_terminal_one_line() -> None:
    file, terminal = io.StringIO(), Terminal()
    for out in (file, terminal):
        line = StartLine(out)
        for second in range(30):
            line.show(f"decode-1: weights {second}/30", float(second))
        line.show("decode-1: warm-up", 30.0)
        line.end()
    assert [row.split("  ")[-1] for row in file.getvalue().splitlines()] == [
        "decode-1: weights 2/30",
        "decode-1: warm-up",
    ]
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
