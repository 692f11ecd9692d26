"""The gateway as a process: what it can never serve with is one line and exit status 2."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from baton.system.exit_status import STATUS_MISCONFIGURED


async def started(tmp_path: Path, **changes: str) -> tuple[int | None, str]:
    """Exit status and last line of a gateway that must not serve."""
    secret = tmp_path / "secret"
    secret.write_text("00" * 32)
    settings = {
        "QUOTA": "127.0.0.1:1",
        "TOKENIZER": "127.0.0.1:1",
        "ROUTER": "127.0.0.1:1",
        "SECRET_FILE": str(secret),
        "LISTEN": "127.0.0.1:0",
        "OUTBOX_DIR": str(tmp_path),
        **changes,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.gateway"),
        env={**os.environ, **{f"BATON_GATEWAY_{name}": text for name, text in settings.items()}},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(100):
        _, told = await process.communicate()
    return process.returncode, told.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ALIASES": "gpt-4o"}, "is not alias=model"),
        ({"ALIASES_FILE": "/nowhere/aliases"}, "/nowhere/aliases"),
        ({"SECRET_FILE": "/nowhere/secret"}, "/nowhere/secret"),
        ({"SECRET_FILE": "/nowhere/secret", "PROCESSES": "2"}, "/nowhere/secret"),
    ],
)
async def test_a_gateway_that_is_misconfigured_says_so_in_its_last_line(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    status, line = await started(tmp_path, **changes)
    assert status == STATUS_MISCONFIGURED
    assert words in line


async def test_a_port_that_was_taken_in_the_meantime_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        status, line = await started(tmp_path, LISTEN=listen)
    assert status == STATUS_MISCONFIGURED
    assert line == f"cannot listen on {listen}: Address already in use"
