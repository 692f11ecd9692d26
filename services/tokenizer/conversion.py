"""Makes a tokenizer.json for a model folder without one, once, in a process of its own.

The conversion needs transformers, which this service never imports. It runs as a child program,
which exists only where the engine is installed. The result is kept in the user's cache, by
fingerprint; the model folder itself is never written to.
"""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

from baton.wire.converted_tokenizer import converted_file
from services.tokenizer.model_folder import TOKENIZER_FILE, ModelFolder, UnusableModel

CONVERTER = "baton.model.load.convert_tokenizer"
_NEEDED = ("transformers", "baton.model")
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME", "TMPDIR")
_MAX_REASON_CHARS = 300


async def tokenizer_file(folder: ModelFolder, cache: Path, deadline_s: float) -> Path:
    """The folder's tokenizer.json, converted when it has none. Raises UnusableModel."""
    if folder.has_tokenizer_file:
        return folder.path / TOKENIZER_FILE
    converted = converted_file(cache, folder.fingerprint)
    if converted.is_file():
        return converted
    if not all(map(importlib.util.find_spec, _NEEDED)):
        raise UnusableModel(
            f"{folder.path} has no {TOKENIZER_FILE}, and {' or '.join(_NEEDED)} is not installed"
            f" here to make one; run `python -m {CONVERTER} {folder.path} {converted}` elsewhere"
        )
    converted.parent.mkdir(parents=True, exist_ok=True)
    await _convert(folder.path, converted, deadline_s)
    return converted


async def _convert(source: Path, target: Path, deadline_s: float) -> None:
    fresh = target.with_suffix(f".{os.getpid()}.tmp")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", CONVERTER, str(source), str(fresh),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    )  # fmt: skip
    try:
        async with asyncio.timeout(deadline_s):
            _, stderr = await process.communicate()
    except TimeoutError:
        raise UnusableModel(
            f"{source} has no {TOKENIZER_FILE}, and making one took over {deadline_s:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or not fresh.is_file():
        lines = stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise UnusableModel(
            f"{source} has no {TOKENIZER_FILE}, and none can be made from its files:"
            f" {lines[-1][:_MAX_REASON_CHARS]}"
        )
    fresh.replace(target)
