"""The end of many blocks at one moment."""

import asyncio

import pytest

from baton.runtime.cutoff import CutOff, Cutoff
from baton.testing.virtual_clock import run_virtual


def test_every_open_block_ends_at_that_moment_and_says_so_before() -> None:
    async def main() -> None:
        cutoff, told, ended = Cutoff(), [], []

        async def block(name: str) -> None:
            with pytest.raises(CutOff):
                async with cutoff.guard(lambda: told.append(name)):
                    await asyncio.Event().wait()
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name in ("a", "b"):
                tasks.create_task(block(name))
            await asyncio.sleep(1)
            cutoff.now()
            assert (told, ended) == (["a", "b"], [])
        assert sorted(ended) == ["a", "b"]

    run_virtual(main())


def test_a_block_that_comes_later_ends_where_it_waits() -> None:
    async def main() -> None:
        cutoff, steps = Cutoff(), []
        cutoff.now()
        with pytest.raises(CutOff):
            async with cutoff.guard():
                steps.append("ran")
                await asyncio.Event().wait()
        assert steps == ["ran"]

    run_virtual(main())


def test_a_block_that_ended_before_is_not_touched_and_its_own_timeout_is_its_own() -> None:
    async def main() -> None:
        cutoff = Cutoff()
        async with cutoff.guard():
            pass
        cutoff.now()
        await asyncio.sleep(1)
        fresh = Cutoff()
        with pytest.raises(TimeoutError):
            async with fresh.guard():
                raise TimeoutError

    run_virtual(main())
