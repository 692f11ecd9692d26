"""What a step of vLLM's may read, by who is in it."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.engines.vllm.pace import is_outranked


def _request(priority: int, *, num_left: int = 1, is_quiet: bool = False) -> Any:
    """As `core_request` makes it: the least number goes first."""
    number = -(2 * priority + is_quiet)
    return SimpleNamespace(priority=number, num_tokens=100, num_computed_tokens=100 - num_left)


@pytest.mark.parametrize(
    ("running", "waiting", "is_so"),
    [
        ([], [], False),
        ([_request(0)], [], False),
        ([], [_request(-1)], False),
        ([_request(0)], [_request(0)], False),
        ([_request(0, is_quiet=True)], [_request(0)], False),
        ([_request(-1, is_quiet=True)], [_request(-1)], False),
        ([_request(0)], [_request(-1)], True),
        ([_request(0)], [_request(-1, is_quiet=True)], True),
        ([_request(-1)], [_request(0)], False),
        ([_request(0), _request(-1, num_left=60)], [], True),
        ([_request(-1), _request(0, num_left=60)], [_request(-1)], False),
    ],
)
def test_a_prompt_is_outranked_by_streams_of_a_higher_priority(
    running: list[Any], waiting: list[Any], is_so: bool
) -> None:
    parked = _request(9)
    scheduler = SimpleNamespace(running=running, waiting=[parked, *waiting])
    assert is_outranked(scheduler, lambda each: each is not parked) is is_so
