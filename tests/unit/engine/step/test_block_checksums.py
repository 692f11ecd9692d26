"""Checksums that a prefill worker tells of its blocks, of which peers verify every so many-th."""

from collections.abc import Sequence

import pytest

from baton.engine.protocol.device_messages import DeviceCommand, DevicePool, PagesRead
from baton.engine.protocol.messages import StepEvents
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4


class FakeDevice:
    """A block's checksum is its id."""

    next_poll_s: float | None = None

    def open(self) -> DevicePool:
        return DevicePool(b"", 0, "DRAM", 0)

    def apply(self, command: DeviceCommand) -> None: ...

    def poll(self) -> list[PagesRead]:
        return []

    def checksums(self, block_ids: Sequence[int]) -> list[list[int]]:
        return [[block_id] for block_id in block_ids]


def make_driver() -> EngineDriver:
    """Computes prompts in chunks of four blocks."""
    runner = FakeRunner(block_size=BLOCK)
    return EngineDriver(
        runner, device=FakeDevice(), num_blocks=64, max_num_seqs=4, max_step_tokens=16
    )


def prefill(driver: EngineDriver, num_tokens: int, every: int | None) -> list[StepEvents]:
    """All steps of a prompt up to its first token."""
    add = add_sequence(7, range(num_tokens), kind="prefill", checksum_every=every)
    steps = [driver.step(add)]
    while 7 not in driver.tokens:
        steps.append(driver.step())
    return steps


def told(steps: list[StepEvents]) -> list[tuple[int, int]]:
    """Index and checksum of each block, in the order in which they were told."""
    return [
        (block.index, *block.sums)
        for events in steps
        for progress in events.progress
        for block in progress.checksums
    ]


@pytest.mark.parametrize("num_tokens", [1, 16, 48, 50])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 100])
def test_every_so_many_th_block_is_told_once_from_the_first_on(num_tokens: int, every: int) -> None:
    driver = make_driver()
    steps = prefill(driver, num_tokens, every)

    num_blocks = -(-num_tokens // BLOCK)
    block_ids = steps[0].started[0].rows
    assert told(steps) == [(index, block_ids[index]) for index in range(0, num_blocks, every)]


def test_a_block_is_told_with_the_step_that_makes_it_final() -> None:
    steps = prefill(make_driver(), 38, 3)

    assert [[index for index, _ in told([events])] for events in steps] == [[0, 3], [6], [9]]


def test_blocks_that_were_cached_are_told_too() -> None:
    driver = make_driver()
    driver.step(add_sequence(1, range(24), max_tokens=1))
    driver.run()
    steps = prefill(driver, 30, 2)

    assert steps[0].started[0].num_cached_tokens == 24
    assert [index for index, _ in told(steps)] == [0, 2, 4, 6]


def test_nothing_is_told_of_a_pool_that_peers_read_as_shared_memory() -> None:
    steps = prefill(make_driver(), 30, None)

    assert sum(len(events.progress) for events in steps) == 2
    assert told(steps) == []
