"""The aliases file, read again whenever it changes. A broken file leaves the old aliases alone."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from baton.runtime import logs
from services.gateway.routing.models import AliasError, Aliases, ModelDirectory, parse_aliases

CHECK_EVERY_S = 1.0

_log = logs.get("alias_file")


def read_aliases(entries: Sequence[str], path: Path | None) -> Aliases:
    """Aliases of the settings and then of the file. Raises AliasError and OSError."""
    lines = path.read_text().splitlines() if path is not None else []
    given = (line.split("#")[0].strip() for line in lines)
    return parse_aliases([*entries, *(line for line in given if line)])


async def follow_aliases(directory: ModelDirectory, entries: Sequence[str], path: Path) -> None:
    """Keep the directory at the file's contents until cancelled."""
    last = _stamp(path)
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        stamp = _stamp(path)
        if stamp == last:
            continue
        last = stamp
        try:
            directory.set_aliases(read_aliases(entries, path))
            _log.info("aliases_reloaded")
        except (AliasError, OSError) as error:
            _log.error("aliases_not_reloaded", error=str(error))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
