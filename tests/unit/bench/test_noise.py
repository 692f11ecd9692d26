"""The measurement beside busy loops: what it counts, and the share that it calls fair."""

import pytest

from bench.noise import engine, loops


def test_windows_alone_and_beside_loops_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_WINDOW_S", 0.0)
    asked: list[int] = []
    alone, beside = engine.measure(asked.append, num_steps=7, num_loops=1, num_rounds=2)
    assert asked == [7] * 5, "one task is not counted"
    assert len(alone) == len(beside) == 2


def test_the_share_is_of_what_as_many_equal_threads_would_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "num_available_cores", lambda: 2)
    record = loops.summary([100.0, 90.0, 500.0], [20.0, 25.0, 30.0], num_threads=2, num_loops=6)
    assert record["of_fair_share"] == 1.0
    alone = loops.summary([100.0], [50.0], num_threads=1, num_loops=0)
    assert alone["of_fair_share"] == 0.5
