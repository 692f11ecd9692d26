"""The measurement of servers beside busy loops: its turns, and the kernel's grouping."""

from pathlib import Path

import pytest

from bench.noise import served


class OneServer:
    """Answers each run of clients with so many tokens in a second."""

    def __init__(self, *num_tokens: int) -> None:
        self._num_tokens = list(num_tokens)
        self.runs: list[str] = []

    def measure(self, _server: object, _concurrency: int, run: str) -> dict[str, float]:
        self.runs.append(run)
        num_tokens = self._num_tokens.pop(0)
        return {
            "num_errors": 0 if num_tokens else 8,
            "num_output_tokens": num_tokens,
            "wall_s": 2.0,
        }


def test_windows_take_turns_and_no_prompt_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_WINDOW_S", 0.0)
    server = OneServer(400, 100, 500, 0)
    turns = served.Turns(server, None)
    turns.take(num_loops=1)
    turns.take(num_loops=1)
    assert turns.alone == [200.0, 250.0]
    assert turns.beside == [50.0, 0.0]
    assert turns.num_failed == 8
    assert len(set(server.runs)) == 4


def test_the_kernels_groups_are_back_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch = tmp_path / "sched_autogroup_enabled"
    switch.write_text("1\n")
    monkeypatch.setattr(served, "_AUTOGROUP", switch)
    with pytest.raises(ZeroDivisionError), served.shares_by_thread():
        assert switch.read_text() == "0"
        raise ZeroDivisionError
    assert switch.read_text() == "1\n"


def test_without_the_right_to_ungroup_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch = tmp_path / "sched_autogroup_enabled"
    switch.write_text("1\n")
    monkeypatch.setattr(served, "_AUTOGROUP", switch)
    monkeypatch.setattr(Path, "write_text", _refused)
    with pytest.raises(SystemExit, match="groups processes"), served.shares_by_thread():
        pass


def _refused(*_: object) -> int:
    raise PermissionError("not root")
