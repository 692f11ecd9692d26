"""The process of the local web page."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from baton.localstack.home import Home
from baton.localstack.web.app import Pages
from baton.page.server import PageServer
from baton.runtime import environment, logs
from baton.runtime.listening_socket import listening_socket
from baton.runtime.process import Process, run

_log = logs.get("web")


@dataclass(frozen=True)
class Settings:
    """BATON_WEB_LISTEN ("host:port"), BATON_WEB_HOME (the folder of the stack), BATON_WEB_QUOTA_API
    ("host:port" of quota's admin API; empty = keys are not shown)."""

    listen: str
    home: Path
    quota_api: str = ""


async def main(process: Process) -> None:
    settings = environment.load(Settings, "BATON_WEB_")
    pages = Pages(Home(settings.home), settings.quota_api)
    bound = listening_socket(settings.listen)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(pages.run())
        _log.info("serving", listen=settings.listen)
        await PageServer(pages.app()).run_until(process.stopping, bound)
        watching.cancel()
    await pages.close()


if __name__ == "__main__":
    run("web", main)
