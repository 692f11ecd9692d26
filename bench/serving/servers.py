"""Starts what is measured through HTTP: whole local stacks, vLLM's server, and a pair of them.

All get the same threads, pool and model; a server is ready when it says so itself.
"""

import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from baton.localstack.home import Home
from baton.localstack.ports import LOOPBACK, free_ports
from bench.contenders import (
    BATON,
    POOL_NAME,
    Parity,
    clean_environment,
    vllm_command,
    vllm_environment,
    vllm_python,
)
from bench.machine import process_tree, tree_cpu_s, tree_memory_bytes
from bench.measured_process import MeasuredProcess, put_ahead
from bench.serving.nixl_pair import NIXL_PAIR, pair_command

_START_TIMEOUT_S = 600.0
_POLL_S = 0.02
_PUT_AHEAD_EVERY_S = 0.3
# A server that takes less of a core than this has settled.
_IDLE_CPU = 0.2
_SETTLE_TRIES, _SETTLE_PAUSE_S = 60, 1.0
# Options of `baton up` for each server that is a stack.
STACKS: dict[str, dict[str, object]] = {
    BATON: {"--aggregated": 1},
    "baton on vllm": {"--aggregated": 1, "--engine": "vllm"},
    "baton on vllm, split": {"--prefill": 1, "--decode": 1, "--engine": "vllm", "--threads": 1},
}
# Waiting for a place in a full batch is what a benchmark wants to see, not a refusal.
_PATIENCE = {"BATON_ROUTER_MAX_WAIT_S": "600", "BATON_GATEWAY_TOKEN_GAP_S": "600"}


@dataclass(slots=True)
class Server:
    """A server that runs. `ready_s`: from its start until it said that it serves."""

    name: str
    process: MeasuredProcess
    started_at: float
    ready_s: float = 0.0
    base_url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    # Where each process of a Baton stack listens, by name.
    endpoints: dict[str, str] = field(default_factory=dict)
    model: str = ""
    on_stop: Callable[[], None] = lambda: None

    def memory_bytes(self, parity: Parity) -> dict[str, int]:
        """Resident bytes of all its processes, and those of the KV pool among them."""
        all_bytes, pool_bytes = tree_memory_bytes(self.process.pid, POOL_NAME)
        # vLLM's pool has no name, and is touched as a whole when it is made.
        reserved = 0 if self.name in STACKS else parity.kv_bytes
        reserved *= 2 if self.name == NIXL_PAIR else 1
        return {"memory_bytes": all_bytes, "pool_bytes": pool_bytes or reserved}

    def settle(self) -> None:
        """Wait until it has nothing left to do of its start; both engines take their pool's memory
        from the system then."""
        for _ in range(_SETTLE_TRIES):
            before_s = tree_cpu_s(self.process.pid)
            time.sleep(_SETTLE_PAUSE_S)
            if tree_cpu_s(self.process.pid) - before_s < _IDLE_CPU * _SETTLE_PAUSE_S:
                return

    def put_ahead(self) -> None:
        for process in process_tree(self.process.pid):
            put_ahead(process.pid)

    def rest(self) -> None:
        """Until the next turn; vLLM's servers are stopped, since they look for work all the time.
        A stack would take that for a fault."""
        if self.name not in STACKS:
            self.process.pause()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While it is measured."""
        self.process.resume()
        try:
            yield
        finally:
            self.rest()

    def stop(self) -> None:
        self.process.stop()
        self.on_stop()


def start_server(name: str, model: Path, parity: Parity, log: Path) -> Server:
    """Start a server and wait until it is ready. Raises RunnerFailed."""
    if name in STACKS:
        server = start_stack(STACKS[name], model, parity, log)
        server.name = name
        return server
    start = _start_pair if name == NIXL_PAIR else _start_vllm
    return _ready(*start(model, parity, log))


def start_stack(workers: Mapping[str, object], model: Path, parity: Parity, log: Path) -> Server:
    """The whole local stack with these options of `baton up`; `parity` holds for each worker.

    Raises RunnerFailed.
    """
    return _ready(*_start_baton(workers, model, parity, log))


def _ready(server: Server, is_ready: Callable[[], bool]) -> Server:
    try:
        _wait_until_ready(server, is_ready)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_ready(server: Server, is_ready: Callable[[], bool]) -> None:
    """Meanwhile its processes are put ahead as they come: each may have a session of its own."""
    ahead_until = 0.0
    while not is_ready():
        now = time.perf_counter()
        has_ended = server.process.process.poll() is not None
        if has_ended or now - server.started_at > _START_TIMEOUT_S:
            raise server.process.failure()
        if now > ahead_until:
            server.put_ahead()
            ahead_until = time.perf_counter() + _PUT_AHEAD_EVERY_S
        time.sleep(_POLL_S)
    server.ready_s = time.perf_counter() - server.started_at
    server.put_ahead()


def _start_baton(
    workers: Mapping[str, object], model: Path, parity: Parity, log: Path
) -> tuple[Server, Callable[[], bool]]:
    folder = Path(tempfile.mkdtemp(prefix="baton-bench-"))
    home = Home(folder / "home")
    options = {
        "--model": model,
        "--dtype": parity.dtype,
        "--threads": parity.num_threads,
        "--kv-memory": parity.kv_bytes,
        "--port": 0,
        **workers,
    }
    words = [str(word) for pair in options.items() for word in pair]
    environment = {
        **clean_environment(),
        **parity.environment,
        **_PATIENCE,
        "BATON_HOME": str(home.root),
        "BATON_VLLM_PYTHON": str(vllm_python()),
    }
    started_at = time.perf_counter()
    process = MeasuredProcess([sys.executable, "-m", "baton.cli", "up", *words], log, environment)
    server = Server(BATON, process, started_at, model=model.name)
    server.on_stop = lambda: shutil.rmtree(folder, ignore_errors=True)

    def is_ready() -> bool:
        state = home.read_state()
        if state is None or not state.ready:
            return False
        server.base_url = state.base_url
        server.endpoints = state.endpoints()
        server.headers = {"Authorization": f"Bearer {home.read_dev_env()['API_KEY']}"}
        return True

    return server, is_ready


def _start_vllm(model: Path, parity: Parity, log: Path) -> tuple[Server, Callable[[], bool]]:
    port = free_ports(1)[0]
    argv = [vllm_command(), *_serve_words(model, parity), "--port", str(port)]
    environment = {**clean_environment(), **vllm_environment(parity)}
    return _listening(Server("vllm", *_start(argv, log, environment), model=model.name), port)


def _start_pair(model: Path, parity: Parity, log: Path) -> tuple[Server, Callable[[], bool]]:
    port = free_ports(1)[0]
    folder = Path(tempfile.mkdtemp(prefix="nixl-pair-"))
    argv = pair_command(port, _serve_words(model, parity), parity, folder)
    server = Server(NIXL_PAIR, *_start(argv, log, clean_environment()), model=model.name)
    server.on_stop = lambda: shutil.rmtree(folder, ignore_errors=True)
    return _listening(server, port)


def _serve_words(model: Path, parity: Parity) -> list[str]:
    """Of `vllm serve`, without a port."""
    options = {
        "--host": LOOPBACK,
        "--dtype": parity.dtype,
        "--max-model-len": 2048,
        "--served-model-name": model.name,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return ["serve", str(model), *words, "--no-enable-log-requests"]


def _start(
    argv: list[str], log: Path, environment: Mapping[str, str]
) -> tuple[MeasuredProcess, float]:
    started_at = time.perf_counter()
    return MeasuredProcess(argv, log, environment), started_at


def _listening(server: Server, port: int) -> tuple[Server, Callable[[], bool]]:
    server.base_url = f"http://{LOOPBACK}:{port}/v1"
    return server, lambda: _answers(f"http://{LOOPBACK}:{port}/health")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
