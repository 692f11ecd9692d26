"""Keeps the table of models as the fleet is: what a ready worker serves is loaded, from the files
that a worker gives, and what no worker has served for a while is dropped.

In a rolling change old and new fingerprints of one name are served side by side. Files are fetched
for all new models at once, and loaded one after the other: a model that is bad, or whose workers
hang, holds up no other. A worker is not trusted: its files must be those of the fingerprint under
which the router knows it, and are data in shapes that nobody promises. Knows no network.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.failures import BatonError
from baton.wire.model_files import BadModelFiles, ModelFiles
from services.tokenizer import instruments
from services.tokenizer.fleet.announced import Announced
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.model_folder import ModelFolder, UnusableModel, model_folder_of
from services.tokenizer.served_model import ServedModel

# A model without a worker stays for so long: workers that died come back.
KEEP_S = 600.0
MAX_MODELS = 32
MAX_BYTES = 256 * 1024 * 1024
# Files of so many models are fetched, and held, at once.
MAX_FETCHES = 4
_TICK_S = 1.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
# What reading files of another shape than they should have can raise.
_BAD_SHAPES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)

# (worker's endpoint, fingerprint) -> its model's files. Raises BatonError, BadModelFiles.
Fetch = Callable[[str, str], Awaitable[ModelFiles]]
# Raises UnusableModel.
Load = Callable[[ModelFolder], Awaitable[ServedModel]]

_log = logs.get("tokenizer")


class FleetModels:
    """The models of the fleet in a table. `run` loads and drops them until cancelled."""

    def __init__(
        self, table: ModelTable, fetch: Fetch, load: Load, clock: Clock, random: Random
    ) -> None:
        self._table = table
        self._fetch = fetch
        self._load_folder = load
        self._clock = clock
        self._random = random
        self._announced: Mapping[str, Announced] = {}
        # Of each model that is loaded, refused or on its way: the bytes of its files, and the time
        # at which a worker served it last.
        self._num_bytes: dict[str, int] = {}
        self._served_at: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._fetching = asyncio.Semaphore(MAX_FETCHES)
        self._loading = asyncio.Lock()
        self._told = asyncio.Event()
        # Those that were announced first, until they are loaded or refused.
        self._awaited: set[str] | None = None
        # Set with the first view of a router, when one model (if it has any) is loaded or refused,
        # and when all of its models are.
        self.is_told = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.is_synced = asyncio.Event()

    def update(self, announced: Mapping[str, Announced]) -> None:
        """Take the models that ready workers serve now."""
        self._announced = announced
        if self._awaited is None:
            self._awaited = set(announced)
            self.is_told.set()
            self._check_synced()
        self._told.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._told.clear()
                await self._follow(group)
                try:
                    async with asyncio.timeout(_TICK_S):
                        await self._told.wait()
                except TimeoutError:
                    pass

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        """Load what is new, and drop what has had no worker for long."""
        now = self._clock.now()
        self._served_at.update(dict.fromkeys(self._announced, now))
        for model_fp, served_at in list(self._served_at.items()):
            if now - served_at >= KEEP_S:
                await self._drop(model_fp)
        for model_fp, announced in self._announced.items():
            if model_fp not in self._tasks and model_fp not in self._table:
                self._table.expect(model_fp, announced.name)
                self._tasks[model_fp] = group.create_task(self._load(model_fp))

    async def _drop(self, model_fp: str) -> None:
        if (task := self._tasks.pop(model_fp, None)) is not None:
            task.cancel()
        del self._served_at[model_fp]
        self._num_bytes.pop(model_fp, None)
        await self._table.drop(model_fp)
        self._settled(model_fp)
        _log.info("model_dropped", model_fp=model_fp)

    async def _load(self, model_fp: str) -> None:
        """Load one model, however often that has to be tried."""
        announced = self._announced[model_fp]
        pause_s, reason = _FIRST_PAUSE_S, ""
        while True:
            announced = self._announced.get(model_fp, announced)
            endpoint = self._random.choice(announced.endpoints)
            try:
                async with self._fetching:
                    files = await self._fetch(endpoint, model_fp)
                    async with self._loading:
                        await self._make_room(files.num_bytes)
                        await self._take_in(announced, files)
                break
            except (BatonError, BadModelFiles) as error:
                instruments.TOKENIZER_FAILED_FETCHES.labels(announced.name).inc()
                if str(error) != reason:
                    reason = str(error)
                    _log.warning(
                        "model_files_not_fetched",
                        model=announced.name,
                        model_fp=model_fp,
                        worker=endpoint,
                        reason=reason[:300],
                    )
            await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        self._settled(model_fp)

    async def _take_in(self, announced: Announced, files: ModelFiles) -> None:
        """Load a model from its files; one that cannot be served is refused, and named."""
        model_fp, name = announced.model_fp, announced.name
        try:
            where = f"model {name} ({model_fp})"
            folder = model_folder_of(files, name, announced.revision, where)
            self._table.add(await self._load_folder(folder))
            self._num_bytes[model_fp] = files.num_bytes
        except (UnusableModel, *_BAD_SHAPES) as error:
            self._table.refuse(model_fp, name)
            reason = f"{type(error).__name__}: {error}"[:300]
            _log.error("model_not_served", model=name, model_fp=model_fp, reason=reason)

    async def _make_room(self, num_bytes: int) -> None:
        """Drop models without a worker until there is room for one more. Raises BadModelFiles."""
        gone = list(self._num_bytes.keys() - self._announced.keys())
        gone.sort(key=lambda model_fp: self._served_at[model_fp])
        while (
            len(self._num_bytes) >= MAX_MODELS
            or sum(self._num_bytes.values()) + num_bytes > MAX_BYTES
        ):
            if not gone:
                held = f"{len(self._num_bytes)} models with {sum(self._num_bytes.values())} bytes"
                raise BadModelFiles(f"no room beside {held} of files")
            await self._drop(gone.pop(0))

    def _settled(self, model_fp: str) -> None:
        self.has_begun.set()
        if self._awaited is not None:
            self._awaited.discard(model_fp)
            self._check_synced()

    def _check_synced(self) -> None:
        if not self._awaited:
            self.has_begun.set()
            self.is_synced.set()
