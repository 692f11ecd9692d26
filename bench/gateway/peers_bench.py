"""Runs `python -m bench gateway --peers`: gateways of other projects and Baton's, one after the
other, under the same client.

Each is in front of a simulated worker with the same pace. Peers' worker speaks OpenAI's API
(`openai_worker.py`), Baton's the product's protocol. CPU time is that of the gateway's processes.
"""

import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from baton.demo_model import demo_model_path
from baton.localstack.ports import free_ports
from bench.contenders import clean_environment
from bench.gateway.gateway_bench import (
    MAX_TOKENS,
    NEVER_US,
    NUM_STREAMS,
    SHORT_PROMPT,
    STEPS_US,
    BenchOptions,
    append_records,
    environment_of,
    server_of,
    start_stack,
)
from bench.gateway.pace import AnswerPace
from bench.gateway.peer_gateways import KEY, PEERS, PeerGateway, Place
from bench.gateway.stream_load import Server, StreamLoad, plan_of
from bench.machine import tree_memory_bytes
from bench.measured_process import MeasuredProcess, Runner, RunnerFailed
from bench.workload import WordList

Record = dict[str, Any]
_PACED = AnswerPace(0, STEPS_US["paced"])
# At 8 streams even the slowest one writes every token in time.
LOADS = {
    "requests": StreamLoad("requests", 8, AnswerPace(0, NEVER_US), 1, SHORT_PROMPT),
    "8 streams": StreamLoad("tokens", 8, _PACED, MAX_TOKENS, SHORT_PROMPT),
    "128 streams": StreamLoad("tokens", NUM_STREAMS, _PACED, MAX_TOKENS, SHORT_PROMPT),
}
_READY_TIMEOUT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Contender:
    """A gateway that runs. `num_asked`: the requests that its worker has had, if that is known."""

    name: str
    version: str
    server: Server
    num_asked: Callable[[], int | None]


# Starts a gateway and what is behind it; takes the folder of logs.
Start = Callable[[Path], AbstractContextManager[Contender]]


def run_peers(options: BenchOptions, output: Path, say: Callable[[str], None]) -> None:
    """Measure Baton and each peer that is installed; append each record to `output`. One that does
    not run is told, and left out."""
    append_records(_records(options, say), output)


def _records(options: BenchOptions, say: Callable[[str], None]) -> Iterator[Record]:
    yield environment_of(options)
    words = WordList.of_tokenizer(demo_model_path() / "tokenizer.json")
    for start in [_worker_alone, _baton, *_installed(say)]:
        try:
            for record in _records_of(start, options, words):
                say(json.dumps(record))
                yield {"part": "peers", **record}
        except RunnerFailed as error:
            say(f"not measured: {error}")


def _records_of(start: Start, options: BenchOptions, words: WordList) -> Iterator[Record]:
    """The records of one gateway. Raises RunnerFailed."""
    logs = options.cache / "logs"
    argv = [sys.executable, "-m", "bench.gateway.load_client"]
    with start(logs) as contender, ExitStack() as stack:
        client = Runner(argv, logs / "peers-client.log", clean_environment())
        stack.callback(client.stop)
        for _ in range(options.num_rounds):
            for name, load in LOADS.items():
                plan = plan_of(load, contender.server, words, options.seconds)
                yield {"load": name, **_record(client, contender, plan)}


def _installed(say: Callable[[str], None]) -> Iterator[Start]:
    for peer in PEERS:
        if peer.is_installed:
            yield partial(_peer, peer)
        else:
            say(f"{peer.name} is not installed: make bench-peers")


def _record(client: Runner, contender: Contender, plan: Record) -> Record:
    asked = contender.num_asked()
    told = client.ask(plan)
    num = told["num_requests"] if plan["kind"] == "requests" else told["num_events"]
    record = {
        "name": contender.name,
        "version": contender.version,
        "per_s": round(num / told["wall_s"], 1),
        "cpu_us": {name: round(s / num * 1e6, 2) for name, s in told["cpu_s"].items()},
        "memory_mib": {
            name: tree_memory_bytes(pid, "")[0] >> 20 for name, pid in contender.server.pids.items()
        },
    }
    if plan["kind"] == "requests" and asked is not None:
        asked_now = contender.num_asked() or 0
        record["asked_per_request"] = round((asked_now - asked) / told["num_sent"], 2)
    return record


@contextmanager
def _worker_alone(logs: Path) -> Iterator[Contender]:
    """The worker without a gateway: what client and worker can do by themselves."""
    with _worker(logs) as port:
        server = Server(_chat_url(port), {}, {})
        yield Contender("none", "", server, lambda: _num_streams(port))


@contextmanager
def _peer(peer: PeerGateway, logs: Path) -> Iterator[Contender]:
    with _worker(logs) as worker_port, tempfile.TemporaryDirectory() as folder:
        port, metrics_port = free_ports(2)
        place = Place(port, metrics_port, worker_port, Path(folder))
        log = logs / f"peer-{peer.name}.log"
        process = MeasuredProcess(peer.argv(place), log, peer.environment())
        try:
            _wait_until_ready(f"http://127.0.0.1:{place.port}{peer.ready_path}", process)
            server = Server(
                _chat_url(place.port), {"Authorization": f"Bearer {KEY}"}, {peer.name: process.pid}
            )
            yield Contender(peer.name, peer.version, server, lambda: _num_streams(worker_port))
        finally:
            process.stop()


@contextmanager
def _baton(logs: Path) -> Iterator[Contender]:
    stack = start_stack(1, logs / "peers-baton.log")
    try:
        yield Contender("baton", "", server_of(stack), lambda: None)
    finally:
        stack.stop()


@contextmanager
def _worker(logs: Path) -> Iterator[int]:
    """A worker; yields its port."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "bench.gateway.openai_worker", str(port)]
    process = MeasuredProcess(argv, logs / "peers-worker.log", clean_environment())
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/health", process)
        yield port
    finally:
        process.stop()


def _chat_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1/chat/completions"


def _num_streams(worker_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{worker_port}/counts", timeout=10) as answer:
        return int(json.load(answer)["num_streams"])


def _wait_until_ready(url: str, process: MeasuredProcess) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while not _answers(url):
        if process.process.poll() is not None or time.monotonic() > deadline_s:
            raise process.failure()
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
