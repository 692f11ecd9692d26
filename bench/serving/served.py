"""Servers side by side under the same load: conversations streamed at several concurrencies.

All servers run at once and take turns, so that a noisy minute hits all of them; one that waits
takes next to no CPU or is stopped, and is woken by a short request before it is measured.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.contenders import BATON, Parity, clean_environment
from bench.machine import CpuWatch
from bench.measured_process import Runner, RunnerFailed
from bench.model_shape import ModelShape
from bench.serving.servers import Server, start_server
from bench.workload import RequestSize, WordList
from loadtest.reporting.latency import summarize

Record = dict[str, Any]
SERVED = (BATON, "vllm")
NO_LIMIT = 10**9
_FIRST_REQUEST = RequestSize(0, 16, 2)
_NUM_WARM_UP = 2
# A server that waited for its turn beside a busy one may have lost sight of its own processes.
_WAKE_TRIES, _WAKE_PAUSE_S = 60, 0.5
_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class ServedPlan:
    """The runs: each server at each concurrency, `requests_per_client` times that many."""

    model: str
    folder: Path
    engines: list[str]
    concurrencies: list[int]
    size: RequestSize
    requests_per_client: int = 10
    max_requests: int = NO_LIMIT
    parity: Parity = field(default_factory=Parity)

    def num_requests(self, concurrency: int) -> int:
        return max(concurrency, min(self.requests_per_client * concurrency, self.max_requests))


def run_served(plan: ServedPlan, logs: Path, report: Callable[[str], None]) -> Iterator[Record]:
    """One record per (server, concurrency) and one per start, as soon as they are measured."""
    common = {"part": "served", "model": plan.model}
    with ExitStack() as stack:
        bench = ServedBench(plan, logs, stack)
        for name in plan.engines:
            report(f"{plan.model}: starting {name}")
            yield common | bench.start(name)
        for concurrency in plan.concurrencies:
            for server in bench.servers:
                report(f"{plan.model}: {server.name}, concurrency {concurrency}")
                yield common | bench.measure(server, concurrency)


class ServedBench:
    """The servers of one model and the process that loads them."""

    def __init__(self, plan: ServedPlan, logs: Path, stack: ExitStack) -> None:
        self.servers: list[Server] = []
        self._plan = plan
        self._logs = logs
        self._stack = stack
        self._words = WordList.of_tokenizer(plan.folder / "tokenizer.json")
        self._weight_bytes = ModelShape.of_folder(plan.folder).weight_bytes
        argv = [sys.executable, "-m", "loadtest.raw_client"]
        self._load = Runner(argv, logs / "load.log", clean_environment())
        stack.callback(self._load.stop)

    def start(self, name: str) -> Record:
        """Start a server, ask for its first tokens, and warm it up."""
        log = self._logs / f"served-{name}.log"
        try:
            server = start_server(name, self._plan.folder, self._plan.parity, log)
        except RunnerFailed as error:
            return {"engine": name, "measure": "start", "error": str(error)}
        self._stack.callback(server.stop)
        first = self._send(server, ["first"], _FIRST_REQUEST, 1)
        first_token_s = time.perf_counter() - server.started_at - _tail_s(first)
        warm_up = [f"warm-{index}" for index in range(_NUM_WARM_UP)]
        answer = self._send(server, warm_up, self._plan.size, 1)
        server.settle()
        server.rest()
        errors = first["errors"] + answer["errors"]
        record = {"engine": name, "measure": "start", "ready_s": server.ready_s}
        if errors:
            return record | {"error": errors[0]}
        self.servers.append(server)
        return record | {"first_token_s": first_token_s}

    def measure(self, server: Server, concurrency: int, run: str = "") -> Record:
        """One run at one concurrency; the prompts are those of the runs of the same name."""
        with server.turn():
            return self._measure(server, concurrency, run)

    def _measure(self, server: Server, concurrency: int, run: str) -> Record:
        self._wake(server)
        names = [f"{run}c{concurrency}-{i}" for i in range(self._plan.num_requests(concurrency))]
        watch = CpuWatch(server.process.pid, self._load.pid)
        answer = self._send(server, names, self._plan.size, concurrency)
        return {
            "engine": server.name,
            "measure": "load",
            "concurrency": concurrency,
            **summarize(answer),
            "others_cpu": watch.others_s() / answer["wall_s"],
            "num_output": self._plan.size.num_output,
            "weight_bytes": self._weight_bytes,
            **server.memory_bytes(self._plan.parity),
        }

    def _wake(self, server: Server) -> None:
        """Ask for little until it is answered; what stays silent fails in the run itself."""
        for number in range(_WAKE_TRIES):
            if not self._send(server, [f"wake-{number}"], _FIRST_REQUEST, 1)["errors"]:
                return
            time.sleep(_WAKE_PAUSE_S)

    def _send(
        self, server: Server, names: list[str], size: RequestSize, concurrency: int
    ) -> dict[str, Any]:
        return self._load.ask(
            {
                "url": f"{server.base_url}/chat/completions",
                "headers": server.headers,
                "bodies": [self._body(server, name, size) for name in names],
                "concurrency": concurrency,
                "timeout_s": _TIMEOUT_S,
            }
        )

    def _body(self, server: Server, name: str, size: RequestSize) -> dict[str, Any]:
        return {
            "model": server.model,
            "messages": self._words.messages(name, size),
            "max_tokens": size.num_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _tail_s(answer: dict[str, Any]) -> float:
    """The time that a run of one request went on after its first text."""
    if not answer["requests"]:
        return 0.0
    request = answer["requests"][0]
    return float(request["ended_s"] - request["text_times_s"][0])
