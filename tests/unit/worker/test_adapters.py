"""A worker's folder of LoRA adapters: what the core and the routers are told of it."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from baton.engine.protocol.adapter_messages import AdaptersServed, ServeAdapters
from baton.engine.protocol.messages import StepEvents
from baton.testing.virtual_clock import run_virtual
from baton.wire.fingerprint import ADAPTER_FILES, adapter_fingerprint
from baton.wire.v1 import router_pb2
from baton.worker.adapters import LOOK_S, AdapterFolder
from tests.unit.worker.scripted_core import LOAD, ScriptedCore, make_worker


def write(folder: Path, text: str = "weights") -> str:
    """An adapter's files; its fingerprint."""
    folder.mkdir(exist_ok=True)
    for name in ADAPTER_FILES:
        (folder / name).write_text(text)
    return adapter_fingerprint(folder)


async def at_once(function: Callable[[], object]) -> object:
    return function()


class Watched:
    """A folder, the core that is told of it, and what routers would hear."""

    def __init__(self, folder: Path) -> None:
        self.core: ScriptedCore
        self.core, deps = make_worker("d0", router_pb2.WORKER_ROLE_DECODE)
        self._dispatcher, self._reports = deps.dispatcher, deps.reports
        self.adapters = AdapterFolder(folder, deps.dispatcher, deps.reports, at_once)

    @property
    def reported(self) -> dict[str, str]:
        assert self._reports.adapters is not None
        return {each.name: each.fingerprint for each in self._reports.adapters.adapters}

    def say(self, *fingerprints: str, **faults: str) -> None:
        """The core says what it serves."""
        served = AdaptersServed(list(fingerprints), list(faults.items()))
        self._dispatcher.dispatch(StepEvents(1, LOAD, adapters=served))

    async def wanted(self) -> set[str]:
        """The fingerprints that the core is told of after the next look."""
        command = await self.core.next(ServeAdapters)
        return {adapter.fingerprint for adapter in command.adapters}


def watched(folder: Path, scenario: Callable[[Watched], Awaitable[None]]) -> None:
    async def main() -> None:
        parts = Watched(folder)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(parts.adapters.run())
            await scenario(parts)
            running.cancel()

    run_virtual(main())


def test_routers_hear_of_the_adapters_that_the_core_has_loaded(tmp_path: Path) -> None:
    poems, code = write(tmp_path / "poems"), write(tmp_path / "code", "other")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes").mkdir()

    async def scenario(parts: Watched) -> None:
        assert await parts.wanted() == {poems, code}
        assert not parts.adapters.are_known.is_set()
        parts.say(poems, **{code: "it is broken"})
        assert parts.reported == {"poems": poems}
        assert parts.adapters.are_known.is_set()

    watched(tmp_path, scenario)


def test_the_core_is_told_what_comes_changes_and_goes(tmp_path: Path) -> None:
    async def scenario(parts: Watched) -> None:
        assert await parts.wanted() == set()
        first = write(tmp_path / "poems")
        assert await parts.wanted() == {first}
        second = write(tmp_path / "poems", "longer weights")
        assert await parts.wanted() == {second} != {first}
        shutil.rmtree(tmp_path / "poems")
        assert await parts.wanted() == set()
        num_commands = len(parts.core.sent)
        await asyncio.sleep(3 * LOOK_S)
        assert len(parts.core.sent) == num_commands

    watched(tmp_path, scenario)


def test_one_adapter_under_two_names_is_loaded_once(tmp_path: Path) -> None:
    fingerprint = write(tmp_path / "poems")
    (tmp_path / "verse").symlink_to(tmp_path / "poems")

    async def scenario(parts: Watched) -> None:
        assert await parts.wanted() == {fingerprint}
        parts.say(fingerprint)
        assert parts.reported == {"poems": fingerprint, "verse": fingerprint}

    watched(tmp_path, scenario)


def test_a_folder_that_cannot_be_read_for_a_while_takes_nothing_away(tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    folder.mkdir()
    fingerprint = write(folder / "poems")

    async def scenario(parts: Watched) -> None:
        assert await parts.wanted() == {fingerprint}
        folder.rename(tmp_path / "away")
        await asyncio.sleep(2 * LOOK_S)
        assert not parts.core.read_commands()

    watched(folder, scenario)
