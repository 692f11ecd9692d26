import asyncio

from baton.runtime.shared_stream import FINISH_TIMEOUT_S, FrameWriter, StreamRunner
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.testing.virtual_clock import run_virtual


def make_runner(stream: MemoryStream, got: list[str]) -> tuple[StreamRunner[str], FrameWriter[str]]:
    def on_frame(frame: str) -> bool:
        got.append(frame)
        return frame != "bye"

    writer: FrameWriter[str] = FrameWriter(stream)
    return StreamRunner(stream, writer, on_frame), writer


def test_a_bye_ends_the_stream_cleanly_on_both_sides() -> None:
    async def scenario() -> None:
        ours, theirs = memory_stream_pair()
        got_here: list[str] = []
        got_there: list[str] = []
        here, writer = make_runner(ours, got_here)
        there, _ = make_runner(theirs, got_there)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(here.run())
            tasks.create_task(there.run())
            writer.send("one")
            await here.finish("bye")
        assert got_there == ["one", "bye"]
        assert not here.was_lost
        assert not there.was_lost

    run_virtual(scenario())


def test_an_end_without_bye_is_a_loss() -> None:
    async def scenario() -> None:
        ours, theirs = memory_stream_pair()
        runner, _ = make_runner(ours, [])
        await theirs.close()

        await runner.run()

        assert runner.was_lost

    run_virtual(scenario())


def test_what_the_drain_still_holds_leaves_before_the_bye() -> None:
    async def scenario() -> None:
        ours, theirs = memory_stream_pair()
        merged = ["last tokens"]
        writer: FrameWriter[str] = FrameWriter(ours, drain=lambda: merged.pop() if merged else None)
        runner = StreamRunner(ours, writer, lambda frame: True)
        got: list[str] = []
        there, _ = make_runner(theirs, got)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run())
            tasks.create_task(there.run())
            writer.wake()
            await runner.finish("bye")
        assert got == ["last tokens", "bye"]

    run_virtual(scenario())


def test_a_peer_that_does_not_end_is_waited_for_only_a_moment() -> None:
    async def scenario() -> float:
        ours, _ = memory_stream_pair()
        runner, _ = make_runner(ours, [])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run())
            await runner.finish("bye")
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == FINISH_TIMEOUT_S == 1.0


def test_a_peer_that_takes_no_frames_is_waited_for_no_longer() -> None:
    async def scenario() -> float:
        ours, theirs = memory_stream_pair(max_frames=1)
        runner, writer = make_runner(ours, [])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run())
            writer.send("one")
            writer.send("two")
            await runner.finish("bye")
        assert [await theirs.read(), await theirs.read()] == ["one", None]
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == FINISH_TIMEOUT_S
