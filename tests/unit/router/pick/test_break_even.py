"""The break-even curve is what the picker says at given rates."""

import json
from dataclasses import asdict, replace

import pytest

from services.router.pick.break_even import Figures, curve, is_local, main


@pytest.fixture
def figures() -> Figures:
    return Figures(
        block_size=16,
        block_bytes=131_072,
        prefill_tokens_per_s=5000.0,
        local_prefill_tokens_per_s=5000.0,
        decode_step_s=0.01,
        handoff_bytes_per_s=1e9,
        handoff_s=0.0,
        chunk_tokens=400,
    )


def test_nothing_leaves_an_idle_decode_worker_that_is_as_fast(figures) -> None:
    assert all(point["is_local"] for point in curve(figures) if point["num_running"] == 0)


def test_with_streams_long_prompts_leave_unless_the_prefill_worker_is_slow(figures) -> None:
    assert not is_local(figures, 4, 4096, 0)
    assert is_local(replace(figures, prefill_tokens_per_s=500.0), 4, 4096, 0)


def test_short_and_almost_fully_cached_prompts_are_not_worth_a_handoff(figures) -> None:
    slow = replace(figures, handoff_s=0.03)
    assert is_local(slow, 4, 16, 0)
    assert is_local(slow, 4, 4096, 4080)
    assert not is_local(slow, 4, 4096, 0)


def test_each_point_is_one_line_of_json(figures, capsys) -> None:
    main([json.dumps(asdict(figures) | {"handoff_bytes_per_s": 0})])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(list(curve(figures)))
    assert set(lines[0]) == {"num_running", "num_prompt_tokens", "cached_share", "is_local"}
