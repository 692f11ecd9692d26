"""The process of the local web page."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from baton.localstack.home import Home
from baton.localstack.web.app import Pages
from baton.runtime import environment, logs
from baton.runtime.process import Process, run

_log = logs.get("web")


@dataclass(frozen=True)
class Settings:
    """BATON_WEB_LISTEN ("host:port"), BATON_WEB_HOME (the folder of the stack), BATON_WEB_QUOTA_API
    ("host:port" of quota's admin API; empty = keys are not shown)."""

    listen: str
    home: Path
    quota_api: str = ""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process root has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def main(process: Process) -> None:
    settings = environment.load(Settings, "BATON_WEB_")
    host, _, port = settings.listen.rpartition(":")
    pages = Pages(Home(settings.home), settings.quota_api)
    config = uvicorn.Config(
        pages.app(), host=host, port=int(port), log_config=None, access_log=False, lifespan="off"
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(pages.run())
        serving = tasks.create_task(server.serve())
        _log.info("serving", listen=settings.listen)
        await process.stopping.wait()
        server.should_exit = server.force_exit = True
        await serving
        watching.cancel()
    await pages.close()


if __name__ == "__main__":
    run("web", main)
