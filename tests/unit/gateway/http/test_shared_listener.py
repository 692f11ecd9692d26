import os
from collections.abc import Iterator

import pytest

from services.gateway.http.shared_listener import ConnectionCounts


@pytest.fixture
def counts() -> Iterator[ConnectionCounts]:
    counts = ConnectionCounts.create(3)
    yield counts
    os.close(counts.file)


def test_the_process_with_the_fewest_connections_takes_the_next(counts: ConnectionCounts) -> None:
    assert counts.is_turn_of(0, 2)
    assert counts.is_turn_of(1, 2)
    assert counts.is_turn_of(2, 1)
    assert not counts.is_turn_of(0, 2)


def test_a_process_that_is_away_is_not_waited_for(counts: ConnectionCounts) -> None:
    assert counts.is_turn_of(0, 0)
    assert not counts.is_turn_of(1, 5)
    counts.left(0)
    assert counts.is_turn_of(1, 5)


def test_thousands_of_connections_are_not_shared_out_one_by_one(counts: ConnectionCounts) -> None:
    assert counts.is_turn_of(0, 1000)
    assert counts.is_turn_of(1, 1060)
    assert not counts.is_turn_of(1, 1100)


def test_all_processes_see_the_counts(counts: ConnectionCounts) -> None:
    other = ConnectionCounts(os.dup(counts.file), 3)
    try:
        assert counts.is_turn_of(0, 1)
        assert not other.is_turn_of(1, 2)
    finally:
        os.close(other.file)
