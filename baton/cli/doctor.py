"""`baton doctor`: what is wrong with this machine for Baton, and what to type."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from baton.localstack import model_folder, models, redis_server
from baton.localstack.home import Home
from baton.localstack.ports import is_free
from baton.localstack.refusal import Refusal
from baton.model.cpu.native import library_path
from baton.system.byte_size import format_bytes
from baton.system.cores import num_available_cores

_OLDEST_PYTHON = (3, 11)
_LEAST_MEMORY = 2 * 2**30
_LEAST_DISK = 2 * 2**30
_DEFAULT_PORT = "8080"
_SMI_TIMEOUT_S = 10
_RED, _GREEN, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
OK, WARNING, WRONG = "ok", "warn", "WRONG"
_COLOURS = {OK: _GREEN, WARNING: _YELLOW, WRONG: _RED}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do unless it is ok."""

    what: str
    found: str
    level: str = OK
    do: str = ""


def add_parsers(commands: Any) -> None:
    help_text = "what is wrong with this machine, and what to type"
    parser = commands.add_parser("doctor", help=help_text, description=help_text)
    help_text = "also look at this model: a folder, or a Hugging Face id that is downloaded"
    parser.add_argument("--model", metavar="NAME", help=help_text)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    worst = 0
    for finding in findings(arguments.model):
        level = f"{finding.level:<5}"
        if is_coloured:
            level = f"{_COLOURS[finding.level]}{level}{_PLAIN}"
        print(f"{level}  {finding.what:<9}  {finding.found}", flush=True)
        if finding.do:
            print(f"{'':<18}{finding.do}")
        worst += finding.level == WRONG
    print("nothing is wrong" if not worst else f"{worst} wrong")
    return 1 if worst else 0


def findings(model: str | None = None) -> Iterator[Finding]:
    """All findings, one by one as they come."""
    home = Home.of_environment()
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _packages,
        _torch,
        _kernels,
        _memory,
        _redis,
        lambda: _stack(home),
        lambda: _disk(home),
    ]
    for check in checks:
        yield from check()
    if model is not None:
        yield from _model(model)


def _python() -> Iterator[Finding]:
    found = f"{platform.python_version()}, {num_available_cores()} cores, {platform.machine()}"
    if sys.version_info < _OLDEST_PYTHON:
        yield Finding("python", found, WRONG, "needs 3.11 or newer: PYTHON=python3.12 make setup")
    else:
        yield Finding("python", found)


def _packages() -> Iterator[Finding]:
    found, missing = [], []
    for package in ("baton-serving-core", "transformers", "grpcio", "tokenizers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        yield Finding("packages", f"without {', '.join(missing)}", WRONG, "type: make setup")
    else:
        yield Finding("packages", ", ".join(found))


def _torch() -> Iterator[Finding]:
    gpus = _gpus()
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", f"cannot be imported: {error}", WRONG, "type: make setup")
        return
    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    build = f"{torch.__version__}, {kind}"
    if not gpus:
        yield Finding("torch", f"{build} build; no NVIDIA GPU on this machine")
    elif torch.cuda.is_available():
        yield Finding("torch", f"{build} build; {'; '.join(gpus)}")
    elif torch.version.cuda:
        do = f"the driver may be older than CUDA {torch.version.cuda} needs; see nvidia-smi"
        yield Finding("torch", f"{build} build cannot use {'; '.join(gpus)}", WRONG, do)
    else:
        do = "for the GPU: make clean, then make setup without TORCH_INDEX_URL"
        yield Finding("torch", f"{build} build beside {'; '.join(gpus)}", WARNING, do)


def _gpus() -> list[str]:
    """Name, memory and driver of each NVIDIA GPU; empty without a driver."""
    if not (program := shutil.which("nvidia-smi")):
        return []
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        told = subprocess.run(
            [program, query, "--format=csv,noheader"],
            capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()]


def _kernels() -> Iterator[Finding]:
    if library_path().exists():
        yield Finding("kernels", "compiled for CPUs")
        return
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    install = "" if compiler else "sudo apt-get install g++, then "
    do = f"models run slower on CPUs; type: {install}make setup"
    yield Finding("kernels", "not compiled", WARNING, do)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    found = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} free"
    if memory.available < _LEAST_MEMORY:
        do = "the demo model needs about 2 GiB: end other programs, or baton up --decode 1"
        yield Finding("memory", found, WRONG, do)
    else:
        yield Finding("memory", found)


def _redis() -> Iterator[Finding]:
    try:
        yield Finding("redis", str(redis_server.find_server()))
    except Refusal as error:
        yield Finding("redis", str(error), WRONG, "type: make setup")


def _stack(home: Home) -> Iterator[Finding]:
    state = home.read_state()
    if state is not None:
        level, do = (OK, "") if state.ready else (WARNING, "see: baton status")
        yield Finding("stack", f"runs at {state.base_url} from {home.root}", level, do)
        return
    port = os.environ.get("BATON_PORT", _DEFAULT_PORT)
    if port.isascii() and port.isdigit() and not is_free(int(port)):
        do = f"another program has it; type: baton up --port {int(port) + 10}"
        yield Finding("port", f"{port} is taken", WRONG, do)
    else:
        yield Finding("port", f"{port} is free; no stack runs in {home.root}")


def _disk(home: Home) -> Iterator[Finding]:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free at {folder}"
    if not os.access(folder, os.W_OK):
        yield Finding("disk", f"{folder} is not writable", WRONG, "name another: --home FOLDER")
    elif free < _LEAST_DISK:
        yield Finding("disk", found, WARNING, "logs, usage and spans grow there: make room")
    else:
        yield Finding("disk", found)


def _model(name: str) -> Iterator[Finding]:
    try:
        [model] = models.resolve([name])
        model_folder.check(model.name, model.folder)
    except Refusal as error:
        yield Finding("model", str(error), WRONG)
        return
    size = format_bytes(model.weight_bytes)
    yield Finding("model", f"{model.name}: {size} of weights in {Path(model.folder)}")
