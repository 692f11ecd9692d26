"""Split, aggregated and automatic serving on the same cores, under streams and long prompts.

Streams with short prompts run; meanwhile long prompts arrive, one after the other. What counts is
the gap between the tokens of the streams while that goes on, and how soon the long prompts are
answered. Two workers of one thread each in every arrangement, and one arrangement at a time. At the
end the workers of the automatic one are asked for the rates that they measured, and the router's
own picker for the prompts that it would leave on a decode worker at these rates.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.contenders import Parity, clean_environment
from bench.machine import CpuWatch, describe_machine
from bench.measured_process import Runner, run_to_end
from bench.models import ensure_model
from bench.serving.servers import Server, start_stack
from bench.serving.worker_rates import read_rates
from bench.workload import RequestSize, WordList
from loadtest.reporting.latency import percentile

Record = dict[str, Any]
SPLIT: dict[str, object] = {"--prefill": 1, "--decode": 1}
ARRANGEMENTS: dict[str, dict[str, object]] = {
    "aggregated": {"--aggregated": 2},
    "split": SPLIT,
    "auto": {**SPLIT, "--disaggregate": "auto"},
}
NUM_TURNS = 4
_TIMEOUT_S = 600.0
_NUM_LONG_OUTPUT = 4
_NUM_SHORT_PROMPT = 24
_WARM_UP_OUTPUT = 8


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`num_streams` at once, each followed by the next for `num_turns` turns; `num_long` prompts
    of `long_tokens` meanwhile. `num_rounds` runs of each arrangement."""

    model: str
    cache: Path
    num_rounds: int = 3
    num_streams: int = 4
    num_turns: int = NUM_TURNS
    stream_tokens: int = 256
    num_long: int = 8
    long_tokens: int = 2000
    kv_bytes: int = 2**30


def run_bench(options: BenchOptions, output: Path, report: Callable[[str], None]) -> None:
    """Measure, and append each record to `output` as soon as it is there. Raises RunnerFailed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for record in _records(options, report):
            file.write(json.dumps(record) + "\n")
            file.flush()


def _records(options: BenchOptions, report: Callable[[str], None]) -> Iterator[Record]:
    environment = {"part": "environment", "unix_s": round(time.time()), **describe_machine()}
    yield environment | {"options": _described(options)}
    folder = ensure_model(options.model, options.cache)
    for round_number in range(options.num_rounds):
        for name, workers in ARRANGEMENTS.items():
            report(f"{name}, round {round_number + 1} of {options.num_rounds}")
            with ExitStack() as stack:
                parity, log = Parity(1, options.kv_bytes), options.cache / "logs/disagg-stack.log"
                server = start_stack(workers, folder, parity, log)
                stack.callback(server.stop)
                bench = StreamsBench(options, folder, stack, server)
                yield {"part": "disagg", "arrangement": name, **bench.measure(round_number)}
                if name == "auto" and round_number == options.num_rounds - 1:
                    yield from _break_even(bench.server, options)


def _described(options: BenchOptions) -> Record:
    names = ("model", "num_streams", "num_turns", "stream_tokens", "num_long", "long_tokens")
    return {name: getattr(options, name) for name in names}


def _break_even(server: Server, options: BenchOptions) -> Iterator[Record]:
    rates = read_rates(server.endpoints)
    yield {"part": "rates", **rates}
    argv = [sys.executable, "-m", "services.router.pick.break_even", json.dumps(rates)]
    log = options.cache / "logs" / "break_even.log"
    for point in run_to_end(argv, log, clean_environment()):
        yield {"part": "break_even", **point}


class StreamsBench:
    """A server that runs, and the two processes that load it."""

    def __init__(
        self, options: BenchOptions, folder: Path, stack: ExitStack, server: Server
    ) -> None:
        self.server = server
        self._options = options
        self._words = WordList.of_tokenizer(folder / "tokenizer.json")
        logs = options.cache / "logs"
        self._loads = []
        for kind in ("streams", "long"):
            argv = [sys.executable, "-m", "loadtest.raw_client"]
            load = Runner(argv, logs / f"disagg-{kind}.log", clean_environment())
            stack.callback(load.stop)
            self._loads.append(load)

    def measure(self, round_number: int) -> Record:
        """Warm up with both kinds of requests, then one run with both at once."""
        options, streams, long = self._options, *self._loads
        warm = RequestSize(0, _NUM_SHORT_PROMPT, _WARM_UP_OUTPUT)
        self._together(
            (streams, [f"warm-{i}" for i in range(2 * options.num_streams)], warm),
            (long, ["warm-long-1", "warm-long-2"], self._long_size),
        )
        self.server.settle()
        num_streams = options.num_streams * options.num_turns
        watch = CpuWatch(self.server.process.pid, streams.pid, long.pid)
        began = time.perf_counter()
        answers = self._together(
            (streams, [f"{round_number}-{i}" for i in range(num_streams)], self._stream_size),
            (long, [f"{round_number}-long-{i}" for i in range(options.num_long)], self._long_size),
        )
        others_cpu = watch.others_s() / (time.perf_counter() - began)
        return summarize(*answers) | {"others_cpu": others_cpu}

    @property
    def _stream_size(self) -> RequestSize:
        return RequestSize(0, _NUM_SHORT_PROMPT, self._options.stream_tokens)

    @property
    def _long_size(self) -> RequestSize:
        return RequestSize(0, self._options.long_tokens, _NUM_LONG_OUTPUT)

    def _together(
        self,
        streams: tuple[Runner, list[str], RequestSize],
        long: tuple[Runner, list[str], RequestSize],
    ) -> tuple[Record, Record]:
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(self._send, *streams, self._options.num_streams)
            second = threads.submit(self._send, *long, 1)
            return first.result(), second.result()

    def _send(
        self, load: Runner, names: list[str], size: RequestSize, concurrency: int
    ) -> dict[str, Any]:
        return load.ask(
            {
                "url": f"{self.server.base_url}/chat/completions",
                "headers": self.server.headers,
                "bodies": [self._body(name, size) for name in names],
                "concurrency": concurrency,
                "timeout_s": _TIMEOUT_S,
            }
        )

    def _body(self, name: str, size: RequestSize) -> dict[str, Any]:
        return {
            "model": self.server.model,
            "messages": self._words.messages(name, size),
            "max_tokens": size.num_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def summarize(streams: Record, long: Record) -> Record:
    """Gaps between the streams' tokens while long prompts were under way, the long prompts' first
    tokens and the gap after those, and the tokens of all per second, from both answers of
    `loadtest/raw_client.py`."""
    errors = streams["errors"] + long["errors"]
    prefills = [(one["began_s"], one["text_times_s"][0]) for one in long["requests"]]
    gaps = [
        later - earlier
        for one in streams["requests"]
        for earlier, later in pairwise(one["text_times_s"])
        if any(began <= later and earlier <= first for began, first in prefills)
    ]
    ttft = [first - began for began, first in prefills]
    # In a split, the rest of the handoff and the start of the decode worker are in these.
    times = [one["text_times_s"][:2] for one in long["requests"]]
    first_gaps = [pair[1] - pair[0] for pair in times if len(pair) == 2]
    num_tokens = sum(one["num_output_tokens"] for one in streams["requests"])
    num_prompt = sum(one["num_prompt_tokens"] for one in long["requests"])
    return {
        "num_errors": len(errors),
        "first_error": errors[0] if errors else None,
        "num_gaps": len(gaps),
        **{f"itl_p{percent}_s": percentile(gaps, percent) for percent in (50, 95, 99)},
        **{f"long_ttft_p{percent}_s": percentile(ttft, percent) for percent in (50, 95)},
        "long_first_gap_p50_s": percentile(first_gaps, 50),
        "stream_tokens_per_s": num_tokens / streams["wall_s"],
        "long_tokens_per_s": num_prompt / long["wall_s"],
    }
