"""The LoRA adapters of a worker: a folder that is looked at again and again.

Each folder in it is an adapter in PEFT's format, served under the folder's name. What comes, goes
or changes there is told to the core, which loads it and says what it serves; routers are told that.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from baton.engine.protocol.adapter_messages import Adapter, ServeAdapters
from baton.engine.protocol.messages import StepEvents
from baton.runtime import logs
from baton.wire.fingerprint import ADAPTER_FILES, adapter_fingerprint
from baton.wire.limits import MAX_ADAPTERS
from baton.wire.v1 import router_pb2, worker_pb2
from baton.worker.dispatch import EngineDispatcher
from baton.worker.reports import ReportLog

LOOK_S = 2.0

_log = logs.get("worker.adapters")

# Size and time of change of each file of an adapter.
_Stamp = tuple[tuple[int, int], ...]


class AdapterFolder:
    """One folder, and the adapters that the core serves of it. `run` must run while the front does;
    `are_known` is set once the core has said what it serves at first."""

    def __init__(
        self,
        folder: Path,
        dispatcher: EngineDispatcher,
        reports: ReportLog,
        in_thread: Callable[..., Coroutine[Any, Any, dict[str, Adapter]]] = asyncio.to_thread,
    ) -> None:
        self.are_known = asyncio.Event()
        self._folder = folder
        self._dispatcher = dispatcher
        self._reports = reports
        self._in_thread = in_thread
        self._wanted: dict[str, Adapter] | None = None
        self._stamps: dict[str, tuple[_Stamp, Adapter]] = {}
        dispatcher.observe(self._take)

    async def run(self) -> None:
        """Look at the folder until cancelled."""
        while True:
            found = await self._in_thread(self._look)
            if found != self._wanted:
                self._wanted = found
                adapters = {each.fingerprint: each for each in found.values()}
                self._dispatcher.send(ServeAdapters(list(adapters.values())))
            await asyncio.sleep(LOOK_S)

    def _look(self) -> dict[str, Adapter]:
        """The adapters whose files are there, by name. Runs in a thread."""
        try:
            folders = sorted(path for path in self._folder.iterdir() if path.name[0] != ".")
            found = {path.name: self._adapter(path) for path in folders}
        except OSError as error:
            _log.warning("adapters_not_read", folder=str(self._folder), detail=str(error))
            return self._wanted or {}
        known = [(name, adapter) for name, adapter in found.items() if adapter is not None]
        return dict(known[:MAX_ADAPTERS])

    def _adapter(self, folder: Path) -> Adapter | None:
        """None for a folder in which something lacks, or is just being written."""
        try:
            stats = [(folder / name).stat() for name in ADAPTER_FILES]
            stamp = tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)
            last = self._stamps.get(folder.name)
            if last is None or last[0] != stamp:
                last = stamp, Adapter(adapter_fingerprint(folder), str(folder))
                self._stamps[folder.name] = last
        except OSError:
            return None
        return last[1]

    def _take(self, events: StepEvents) -> None:
        """The core says what it serves."""
        if events.adapters is None or self._wanted is None:
            return
        names = {name: adapter.fingerprint for name, adapter in self._wanted.items()}
        for fingerprint, fault in events.adapters.faults:
            faulty = [name for name, each in names.items() if each == fingerprint]
            _log.error("adapter_not_served", adapters=faulty, detail=fault)
        served = worker_pb2.AdapterList(
            adapters=[
                router_pb2.Adapter(name=name, fingerprint=fingerprint)
                for name, fingerprint in names.items()
                if fingerprint in events.adapters.fingerprints
            ]
        )
        _log.info("adapters_served", adapters=[each.name for each in served.adapters])
        self._reports.serve_adapters(served)
        self.are_known.set()
