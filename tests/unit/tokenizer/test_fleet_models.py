"""The models of a fleet whose workers, or whose files, are not as they should be."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from baton.testing.tokenizer_folder import build_tokenizer_folder
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import Unavailable
from baton.wire.model_files import ModelFiles, read_model_files
from services.tokenizer.fleet.announced import Announced
from services.tokenizer.fleet.fleet_models import FleetModels
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.model_folder import ModelFolder
from services.tokenizer.served_model import ServedModel, load_model
from tests.kit.in_process_renderer import in_process_renderers


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Workers:
    """Workers by endpoint, and the files that each gives."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.files: dict[str, ModelFiles] = {}
        self.table = ModelTable([], self.clock, waits=True)
        self.models = FleetModels(self.table, self._fetch, self._load, self.clock, Random(1))

    async def _fetch(self, endpoint: str, model_fp: str) -> ModelFiles:
        if endpoint not in self.files:
            raise Unavailable("no such worker")
        return self.files[endpoint]

    async def _load(self, folder: ModelFolder) -> ServedModel:
        make_renderer = in_process_renderers(lambda: pytest.fail("no template tells the time"))
        return await load_model(folder, make_renderer, run_inline, lambda n: b"\7" * n)

    @asynccontextmanager
    async def followed(self, announced: dict[str, ModelFiles]) -> AsyncIterator[None]:
        """The router tells that each of these workers serves these files."""
        running = asyncio.create_task(self.models.run())
        self.models.update(
            {
                files.fingerprint: Announced(files.fingerprint, "m", "", (endpoint,))
                for endpoint, files in announced.items()
            }
        )
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])
        assert running.cancelled(), "it would have gone on"


def good(folder: Path) -> ModelFiles:
    return read_model_files(build_tokenizer_folder(folder / "good"))


def broken(folder: Path) -> ModelFiles:
    """Files on which the tokenizers library panics."""
    path = build_tokenizer_folder(folder / "broken") / "tokenizer.json"
    panics = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}
    path.write_text(json.dumps(json.loads(path.read_text()) | panics))
    return read_model_files(path.parent)


def test_a_model_that_cannot_be_loaded_is_refused_and_the_other_is_served(tmp_path: Path) -> None:
    workers, old, new = Workers(), good(tmp_path), broken(tmp_path)
    workers.files = {"a": old, "b": new}

    async def scenario() -> None:
        async with workers.followed(workers.files):
            await workers.models.is_synced.wait()
            assert workers.table.get(old.fingerprint).vocab_size
            with pytest.raises(Unavailable, match="cannot be loaded"):
                await workers.table.find(new.fingerprint)

    run_virtual(scenario(), workers.clock)


def test_a_tokenizer_of_a_fleet_without_models_has_all_of_them() -> None:
    workers = Workers()

    async def scenario() -> None:
        assert not workers.models.is_told.is_set()
        async with workers.followed({}):
            assert workers.models.has_begun.is_set()
            assert workers.models.is_synced.is_set()

    run_virtual(scenario(), workers.clock)


def test_one_that_gets_no_files_has_not_begun_until_a_worker_gives_them(tmp_path: Path) -> None:
    workers, files = Workers(), good(tmp_path)

    async def scenario() -> None:
        async with workers.followed({"a": files}):
            await asyncio.sleep(120)
            assert not workers.models.has_begun.is_set()
            workers.files = {"a": files}
            await workers.models.has_begun.wait()
            assert files.fingerprint in workers.table

    run_virtual(scenario(), workers.clock)
