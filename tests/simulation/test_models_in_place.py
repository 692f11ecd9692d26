"""A model's chat template is changed in place, while clients ask for it all the time: every request
is answered, with the template of the workers that answer it, whichever starts again first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.failures import Unavailable
from baton.wire.model_files import ModelFiles, read_model_files
from services.tokenizer.fleet.announced import RouterView
from services.tokenizer.fleet.fleet_models import FleetModels
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.model_folder import ModelFolder, model_folder_of
from services.tokenizer.served_model import ServedModel
from services.tokenizer.settings import Settings
from tests.simulation.fleet import Answer, Fleet, fleet_of, load_folder, make_model_folder

LOAD_S = 1.5  # of a tokenizer, which is long beside a step
# A service that ends follows the fleet for as long as it has calls open.
DRAIN_S = Settings.drain_s
EVERY_S = 0.06
MAX_TOKENS = 24
NEW = "{% set marked = true %}<|system|>new<|end|>"


class Versions:
    """The folders of a model before and after the change, and what workers have read of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_model_folder(folder / "sim")
        self.old = read_model_files(self.folder)
        template = self.folder / "chat_template.jinja"
        template.write_text(NEW + template.read_text())
        self.new = read_model_files(self.folder)
        assert self.old.fingerprint != self.new.fingerprint

    async def load(self, files: ModelFiles) -> ServedModel:
        return await load_folder(model_folder_of(files, "sim", "", str(self.folder)))


class Tokenizers:
    """The tokenizer service of a fleet: lives one after the other, each with the models that the
    router tells of, from the files that workers have read."""

    def __init__(self, fleet: Fleet, versions: Versions, seed: int) -> None:
        self._fleet = fleet
        self._versions = versions
        self._random = Random(seed)
        self._life: asyncio.Task[None] | None = None
        self.num_loaded = 0

    async def begin(self) -> None:
        """Begin a life that knows no model yet, and serve when it has those of now."""
        table = ModelTable([], self._fleet.clock, waits=True)
        models = FleetModels(table, self._fetch, self._load, self._fleet.clock, self._random)
        before = self._life
        self._life = self._fleet._tasks.create_task(self._live(models))
        await models.is_synced.wait()
        self._fleet.tokenizer.begin(table)
        if before is not None:
            await asyncio.sleep(DRAIN_S)
            before.cancel()

    async def _live(self, models: FleetModels) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(models.run())
            view = RouterView()
            async for message in self._fleet.router.watch_admission(takes_deltas=True):
                view.take_in(message)
                models.update(view.announced())

    async def _fetch(self, endpoint: str, model_fp: str) -> ModelFiles:
        worker = self._fleet.workers.get(endpoint)
        if worker is None or worker.engine.info.model_fp != model_fp:
            raise Unavailable("no such worker")
        versions = self._versions
        return versions.old if model_fp == versions.old.fingerprint else versions.new

    async def _load(self, folder: ModelFolder) -> ServedModel:
        await asyncio.sleep(LOAD_S)
        self.num_loaded += 1
        return await load_folder(folder)


class Client:
    """Asks for the model all the time, and checks each answer."""

    def __init__(self, fleet: Fleet, versions: Versions) -> None:
        self._fleet = fleet
        self._versions = versions
        self.answered: list[str] = []

    async def ask(self, number: int) -> None:
        request_id, answer = f"r{number}", _Identified()
        fields = {"max_tokens": MAX_TOKENS, "seed": number, "request_id": request_id}
        await self._fleet.ask(f"{number} asks", answer, **fields)
        assert answer.texts[0] == self._fleet.expected(request_id, MAX_TOKENS, number)
        assert answer.usage.num_output_tokens == MAX_TOKENS
        model_fp = answer.fingerprint
        tokenizer = await self._versions.load(self._versions.old)
        prompt = self._fleet.tokenizer.prompts[request_id]
        begin = tokenizer.tokenizer.encode_text("new", has_frame=False).ids
        is_new = prompt[1 : 1 + len(begin)] == begin
        assert is_new == (model_fp == f"fp_{self._versions.new.fingerprint[:12]}")
        self.answered.append("new" if is_new else "old")


class _Identified(Answer):
    fingerprint = ""

    def opened(self, identity: Any, request: Any) -> Answer:
        self.fingerprint = identity.system_fingerprint
        return self


@asynccontextmanager
async def asking(client: Client) -> AsyncIterator[None]:
    """Requests all the time; all of them are answered at the end."""
    async with asyncio.TaskGroup() as tasks:

        async def ask_on() -> None:
            number = 0
            while True:
                tasks.create_task(client.ask(number))
                number += 1
                await asyncio.sleep(EVERY_S)

        asking_on = tasks.create_task(ask_on())
        await asyncio.sleep(1)
        yield
        await asyncio.sleep(1)
        asking_on.cancel()


async def restart(fleet: Fleet, endpoint: str, model: ServedModel, away_s: float) -> None:
    """Drain a worker and let its next life serve this model."""
    worker = await fleet.drain(endpoint, cap_s=4.0)
    await asyncio.sleep(away_s)
    fleet.model = model
    fleet.start_worker(worker.name, endpoint)
    await asyncio.sleep(1)


Order = Callable[[Fleet, Tokenizers, ServedModel], Any]


async def tokenizers_first(fleet: Fleet, tokenizers: Tokenizers, new: ServedModel) -> None:
    await tokenizers.begin()
    for endpoint in list(fleet.workers):
        await restart(fleet, endpoint, new, 0.5)


async def workers_first(fleet: Fleet, tokenizers: Tokenizers, new: ServedModel) -> None:
    for endpoint in list(fleet.workers):
        await restart(fleet, endpoint, new, 0.5)
    await tokenizers.begin()


async def in_between(fleet: Fleet, tokenizers: Tokenizers, new: ServedModel) -> None:
    for number, endpoint in enumerate(reversed(list(fleet.workers))):
        if number == 1:
            await tokenizers.begin()
        await restart(fleet, endpoint, new, 0.5)


@pytest.mark.parametrize(
    ("order", "num_decode"), [(tokenizers_first, 1), (workers_first, 2), (in_between, 1)]
)
def test_every_request_is_answered_with_the_template_of_its_workers(
    order: Order, num_decode: int, tmp_path: Path
) -> None:
    clock = VirtualClock()

    async def scenario() -> None:
        versions = Versions(tmp_path)
        old, new = await versions.load(versions.old), await versions.load(versions.new)
        sizes = {"num_prefill": 1, "num_decode": num_decode, "num_blocks": 2048}
        async with fleet_of(1, clock, old, **sizes) as fleet:
            tokenizers, client = Tokenizers(fleet, versions, 1), Client(fleet, versions)
            await tokenizers.begin()
            async with asking(client):
                await order(fleet, tokenizers, new)
            assert client.answered[0] == "old"
            assert client.answered[-1] == "new"
            assert len(client.answered) > 100
            assert tokenizers.num_loaded >= 3, "both versions, and one of them twice"
            await fleet.quiet()

    run_virtual(scenario(), clock)
