"""Runs the parts of `python -m bench gateway` against a stack with a simulated worker.

`tokens`: CPU time of a streamed token, at a pace that leaves the gateway idle for most of the time
and at one that it cannot follow. `requests`: CPU time of a short request in each process. `ttft`:
time to the first token beyond the worker's own. `traces`: CPU time of a short request when none,
one in a hundred and all of the requests leave their trace, which the local stack's receiver gets.
`idle`: memory of a stream that waits. The lag of the gateway's event loop is the time of /healthz
meanwhile, which has next to nothing to do.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton.demo_model import demo_model_path
from bench.contenders import clean_environment
from bench.gateway.pace import AnswerPace
from bench.gateway.simulated_stack import SimulatedStack
from bench.gateway.simulated_worker import OWN_STAGE
from bench.gateway.stream_load import Server, StreamLoad, plan_of
from bench.machine import CpuWatch, describe_machine, process_tree
from bench.measured_process import Runner, put_ahead
from bench.workload import WordList
from loadtest.reporting.latency import percentile

Record = dict[str, Any]
PARTS = ("tokens", "requests", "ttft", "traces", "idle")
SERVICES = ("gateway", "quota", "tokenizer", "router")
NUM_STREAMS = 128
# Steps of the workers: at 10 ms 12,800 tokens/s, at 1 ms more than one process can write.
STEPS_US = {"paced": 10_000, "full": 1_000}
# Prompts of about 1 kB and of 1,000 tokens.
SHORT_PROMPT, LONG_PROMPT = 200, 1_000


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Clients, each with one request at a time. They begin all at once, or one by one over
    `spread_ms`. A worker takes `prefill_ms` to the first token."""

    name: str
    num_streams: int
    prefill_ms: int = 0
    spread_ms: int = 0


SHORT_LOAD = RequestLoad("8", 8)
# Some 80 requests a second of 32 clients. Those that begin at once stay together: after 400 ms all
# of them ask again.
TTFT_LOADS = (
    RequestLoad("1", 1, 20),
    RequestLoad("32 at once", 32, 400),
    RequestLoad("32 one by one", 32, 400, 400),
)
# The share of the requests that leave their trace.
TRACED = (0.0, 0.01, 1.0)
NEVER_US = 3_600_000_000
MAX_TOKENS = 100_000
_PROBE_S = 0.05
# One tenant has all streams; no stream ends because its worker waits.
_VARIABLES = {"BATON_GATEWAY_TENANT_SHARE": "1", "BATON_GATEWAY_TOKEN_GAP_S": "3600"}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is measured, how long each run counts and how often it is repeated."""

    parts: tuple[str, ...]
    cache: Path
    seconds: float = 4.0
    num_rounds: int = 3
    num_idle: int = 2_000
    # Of the gateway.
    num_processes: int = 1


def run_bench(options: BenchOptions, output: Path, say: Callable[[str], None]) -> None:
    """Measure, and append each record to `output` as soon as it is there. Raises RunnerFailed."""
    with ExitStack() as stack:
        append_records(_records(options, stack, say), output)


def append_records(records: Iterable[Record], output: Path) -> None:
    """Append each record to a file as soon as it is there."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
            file.flush()


def environment_of(options: BenchOptions) -> Record:
    """The record of the machine and the options of a run."""
    described = {
        "seconds": options.seconds,
        "num_rounds": options.num_rounds,
        "num_processes": options.num_processes,
    }
    return {"part": "environment", **describe_machine(), "options": described}


def _records(
    options: BenchOptions, stack: ExitStack, say: Callable[[str], None]
) -> Iterator[Record]:
    yield environment_of(options)
    bench = _Bench(options, stack)
    for part in options.parts:
        for record in bench.measure(part):
            say(json.dumps(record))
            yield {"part": part, **record}


def start_stack(num_processes: int, log: Path, traced: float = 0.0) -> SimulatedStack:
    """Start a stack with so many processes of the gateway. Raises RunnerFailed."""
    variables = {
        **_VARIABLES,
        "BATON_GATEWAY_PROCESSES": str(num_processes),
        "OTEL_TRACES_SAMPLER_ARG": str(traced),
    }
    return SimulatedStack.start({"--aggregated": 1, "--threads": 1}, variables, log)


def server_of(stack: SimulatedStack) -> Server:
    """The stack as a server whose services are watched and run ahead of other programs."""
    # Each has a session of its own.
    for process in process_tree(stack.process.pid):
        put_ahead(process.pid)
    pids = stack.pids()
    headers = {"Authorization": f"Bearer {stack.key('bench')}"}
    return Server(stack.url, headers, {name: pids[name] for name in SERVICES})


class _Bench:
    """The running stacks, by the share of requests that they trace, and the process that loads
    them."""

    def __init__(self, options: BenchOptions, stack: ExitStack) -> None:
        self._options = options
        self._words = WordList.of_tokenizer(demo_model_path() / "tokenizer.json")
        self._logs = options.cache / "logs"
        self._ends = stack
        self._servers: dict[float, tuple[SimulatedStack, Server]] = {}
        argv = [sys.executable, "-m", "bench.gateway.load_client"]
        self._client = Runner(argv, self._logs / "gateway-client.log", clean_environment())
        stack.callback(self._client.stop)

    def measure(self, part: str) -> Iterator[Record]:
        """The records of one part."""
        if part == "idle":
            yield self._idle()
            return
        if part == "traces":
            for traced in TRACED:
                self._server(traced)
        for _ in range(self._options.num_rounds):
            if part == "tokens":
                for name, step_us in STEPS_US.items():
                    yield {"pace": name, **self._tokens(step_us)}
            elif part == "requests":
                yield self._requests(SHORT_LOAD, SHORT_PROMPT)
            elif part == "traces":
                for traced in TRACED:
                    told = self._requests(SHORT_LOAD, SHORT_PROMPT, traced)
                    yield {**told, "load": f"{traced:.0%} traced"}
            else:
                for load in TTFT_LOADS:
                    yield self._requests(load, LONG_PROMPT)

    def _tokens(self, step_us: int) -> Record:
        pace = AnswerPace(0, step_us)
        told = self._run(StreamLoad("tokens", NUM_STREAMS, pace, MAX_TOKENS, SHORT_PROMPT))
        num, cpu_s = told["num_tokens"], told["cpu_s"]["gateway"]
        return {
            "tokens_per_s": round(num / told["wall_s"]),
            "events_per_s": round(told["num_events"] / told["wall_s"]),
            "us_per_token": round(cpu_s / num * 1e6, 2),
            "us_per_event": round(cpu_s / told["num_events"] * 1e6, 2),
            "gateway_cores": round(cpu_s / told["wall_s"], 3),
            "client_cores": round(told["client_cpu_s"] / told["wall_s"], 3),
            **_times(told["lag_s"], "lag"),
            "others_cpu": told["others_cpu"],
        }

    def _requests(self, load: RequestLoad, num_prompt: int, traced: float = 0.0) -> Record:
        pace, spread_s = AnswerPace(load.prefill_ms, NEVER_US), load.spread_ms / 1000
        told = self._run(
            StreamLoad("requests", load.num_streams, pace, 1, num_prompt, spread_s=spread_s),
            traced,
        )
        num, stages_s = told["num_requests"], told["stages_s"]
        own_s = [stages.pop(OWN_STAGE, 0.0) for stages in stages_s]
        added = [a - b for a, b in zip(told["first_s"], own_s, strict=True)]
        return {
            "load": load.name,
            "prefill_ms": load.prefill_ms,
            "num_requests": num,
            "requests_per_s": round(num / told["wall_s"], 1),
            "cpu_ms": {name: round(s / num * 1e3, 3) for name, s in told["cpu_s"].items()},
            **_times(added, "added_ttft"),
            "added_parts_ms": parts_ms(added, stages_s),
            **_times(told["lag_s"], "lag"),
            "others_cpu": told["others_cpu"],
        }

    def _idle(self) -> Record:
        count = self._options.num_idle
        told = self._run(StreamLoad("idle", count, AnswerPace(0, NEVER_US), 1_000, SHORT_PROMPT))
        kib = {name: round(size / count / 1024, 2) for name, size in told["memory_bytes"].items()}
        return {"num_streams": count, "kib_per_stream": kib}

    def _server(self, traced: float) -> tuple[SimulatedStack, Server]:
        """The stack that traces this share, and the same as a server; started when first used."""
        if traced not in self._servers:
            log = self._logs / f"gateway-stack-{traced:g}.log"
            stack = start_stack(self._options.num_processes, log, traced)
            self._ends.callback(stack.stop)
            self._servers[traced] = stack, server_of(stack)
        return self._servers[traced]

    def _run(self, load: StreamLoad, traced: float = 0.0) -> Record:
        stack, server = self._server(traced)
        plan = plan_of(load, server, self._words, self._options.seconds)
        watch = CpuWatch(self._client.pid, stack.process.pid)
        began_s = time.monotonic()
        with LagProbe(stack.url) as probe:
            told = self._client.ask(plan)
        others = watch.others_s() / (time.monotonic() - began_s)
        return {**told, "lag_s": probe.times_s, "others_cpu": round(others, 2)}


class LagProbe:
    """Asks /healthz again and again in a thread of its own; notes the time of each answer."""

    def __init__(self, url: str) -> None:
        self.times_s: list[float] = []
        self._netloc = urlsplit(url).netloc
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._probe)

    def __enter__(self) -> "LagProbe":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _probe(self) -> None:
        connection = http.client.HTTPConnection(self._netloc, timeout=30)
        while not self._ended.wait(_PROBE_S):
            began_s = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            self.times_s.append(time.perf_counter() - began_s)
        connection.close()


def parts_ms(added_s: list[float], stages_s: list[dict[str, float]]) -> dict[str, float]:
    """The mean of the added time, of each of the gateway's stages in it, and of what is left: the
    client, HTTP, and the wait for the event loop before the first stage."""
    num = len(added_s)
    names = dict.fromkeys(name for stages in stages_s for name in stages)
    parts = {name: sum(stages.get(name, 0.0) for stages in stages_s) / num for name in names}
    whole_s = sum(added_s) / num
    parts = {"all of it": whole_s, **parts, "rest": whole_s - sum(parts.values())}
    return {name: round(part_s * 1e3, 2) for name, part_s in parts.items()}


def _times(values: list[float], name: str) -> Record:
    """The middle and the 99th percentile, in milliseconds."""
    found = {percent: percentile(values, percent) for percent in (50, 99)}
    return {f"{name}_p{p}_ms": round((s or 0.0) * 1e3, 2) for p, s in found.items()}
