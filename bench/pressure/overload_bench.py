"""Runs the parts of `python -m bench overload` against the real stack and appends JSON lines.

`shed`: capacity by a closed loop, then an open loop of 0.5, 3 and 0.8 times of it. `fair`: a quiet
tenant alone, beside one that leaves room, and beside one with 20 times its load; one tenant as loud
as both; two tenants with a backlog. The workers' steps take a set time (`paced_core.py`).
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from baton.demo_model import demo_model_path
from bench.contenders import clean_environment
from bench.machine import CpuWatch, describe_machine, tree_cpu_s, tree_wait_s
from bench.measured_process import Runner
from bench.pressure import outcome
from bench.pressure.pace import VARIABLE, Pace
from bench.pressure.paced_stack import MODEL, PacedStack
from bench.workload import RequestSize, WordList
from loadtest.reporting.latency import percentile

Record = dict[str, Any]
PARTS = ("shed", "fair")
# Each phase's load, of the capacity, and its time, of `seconds`.
PHASES = (("0.5x", 0.5, 0.5), ("3x", 3.0, 1.0), ("0.8x", 0.8, 0.75))
QUIET_SHARE, CALM_SHARE, LOUD_SHARE = 0.05, 0.6, 1.0
NUM_DECODE = 2
_NUM_PROMPT = 16
_PROMPT_TOKEN_S = 0.0005
_TIMEOUT_S = 300.0
# More clients than slots, so that no slot is idle.
_CLIENTS_PER_SLOT = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The phase at 3x takes `seconds`. Answers have about `num_output` tokens."""

    parts: tuple[str, ...]
    cache: Path
    seconds: float = 60.0
    step_s: float = 0.05
    slots: int = 80
    num_output: int = 100
    due_s: float = 10.0
    seed: int = 1

    @property
    def service_s(self) -> float:
        return self.num_output * self.step_s


def run_bench(options: BenchOptions, output: Path, say: Callable[[str], None]) -> None:
    """Measure, and append each record to `output` as soon as it is there. Raises RunnerFailed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file, ExitStack() as stack:
        for record in _records(options, stack, say):
            file.write(json.dumps(record) + "\n")
            file.flush()


def _records(
    options: BenchOptions, stack: ExitStack, say: Callable[[str], None]
) -> Iterator[Record]:
    names = ("seconds", "step_s", "slots", "num_output", "due_s", "seed")
    described = {name: getattr(options, name) for name in names}
    yield {"part": "environment", **describe_machine(), "options": described}
    say("starting the stack")
    bench = _Bench(options, stack)
    say("capacity")
    capacity = bench.capacity()
    yield {"part": "capacity", **capacity}
    if "shed" in options.parts:
        say(f"overload: {capacity['per_s']:.1f} answers/s are 1x")
        yield from bench.shed(capacity["per_s"])
    if "fair" in options.parts:
        for name, figures in bench.fair(capacity["per_s"]):
            say(f"fairness: {name}")
            yield {"part": "fair", "case": name, **figures}


class _Bench:
    """The running stack and the process that loads it."""

    def __init__(self, options: BenchOptions, stack: ExitStack) -> None:
        self._options = options
        self._random = Random(options.seed)
        self._words = WordList.of_tokenizer(demo_model_path() / "tokenizer.json")
        (token_id,) = self._words.token_ids("answer", 1)
        logs = options.cache / "logs"
        workers = {
            "--prefill": 1,
            "--decode": NUM_DECODE,
            "--max-batch": options.slots // NUM_DECODE,
            "--kv-memory": "128MiB",
            "--threads": 1,
        }
        pace = Pace(options.step_s, _PROMPT_TOKEN_S, token_id)
        self._stack = PacedStack.start(workers, {VARIABLE: str(pace)}, logs / "overload-stack.log")
        stack.callback(self._stack.stop)
        argv = [sys.executable, "-m", "bench.pressure.open_loop"]
        self._client = Runner(argv, logs / "overload-client.log", clean_environment())
        stack.callback(self._client.stop)
        self._keys = {tenant: self._stack.key(tenant) for tenant in ("one", "quiet", "loud")}
        self._num_sent = 0

    def capacity(self) -> Record:
        """Whole answers a second while all slots are busy, by clients that wait for each."""
        options = self._options
        begin, end = 2 * options.service_s, 2 * options.service_s + options.seconds / 2
        count = math.ceil(4 * options.slots * end / options.service_s)
        plan = {
            "concurrency": round(_CLIENTS_PER_SLOT * options.slots),
            "seconds": end,
            "requests": [self._request("one") for _ in range(count)],
        }
        records, figures = self._send(plan)
        per_s = outcome.goodput_per_s(records, begin, end, math.inf)
        return {"per_s": per_s, "codes": outcome.codes(records), **figures}

    def shed(self, per_s: float) -> Iterator[Record]:
        """0.5, 3 and 0.8 times the capacity, each request due in `due_s`."""
        options, end = self._options, 0.0
        times: list[float] = []
        begins = []
        for _, load, share in PHASES:
            begins.append(end)
            times += self._times(load * per_s, end, end := end + share * options.seconds)
        plan = {"requests": [self._request("one", at_s, options.due_s) for at_s in times]}
        records, figures = self._send(plan)
        log = self._stack.gateway_log()
        calm = outcome.ttft_s(outcome.arrived(records, 0, begins[1]))
        calm_p50_s = percentile(calm, 50) or 0.0
        for (name, load, _), span in zip(PHASES, pairwise([*begins, end]), strict=True):
            yield {
                "part": "shed",
                "phase": name,
                "load": load,
                **self._phase(records, span, log),
                "retry": outcome.retry_advice(outcome.arrived(records, *span), calm_p50_s),
                **figures,
            }
        after_s = outcome.normal_after_s(records, begins[2], end, calm_p50_s)
        yield {"part": "normal", "after_s": after_s}

    def _phase(self, records: list[Record], span: tuple[float, float], log: list[str]) -> Record:
        """The figures of the requests that came in one phase; goodput without its beginning, in
        which answers of the last one end."""
        options, (begin, end) = self._options, span
        mine = outcome.arrived(records, begin, end)
        counted_from = begin + min(1.5 * options.service_s, (end - begin) / 2)
        ids = {each["request_id"] for each in outcome.refused(mine)}
        times = {
            "ttft": outcome.ttft_s(mine),
            "refusal": outcome.refusal_s(mine),
            "gateway_refusal": outcome.gateway_refusal_s(log, ids),
            "retry_after": [each["retry_after_s"] for each in outcome.refused(mine)],
        }
        return {
            "num_requests": len(mine),
            "goodput_per_s": outcome.goodput_per_s(records, counted_from, end, options.due_s),
            "num_refused": len(ids),
            "repeated_share": outcome.repeated_share(log, ids),
            "stage_p99_s": outcome.stage_p99_s(log, ids),
            "codes": outcome.codes(mine),
            **_percentiles(times),
        }

    def fair(self, per_s: float) -> Iterator[tuple[str, Record]]:
        """All cases; nothing is due at a set time."""
        quiet, loud = QUIET_SHARE * per_s, LOUD_SHARE * per_s
        once, longer = self._options.seconds, 1.5 * self._options.seconds
        yield "quiet alone", self._case({"quiet": quiet}, longer)
        calm = self._case({"quiet": quiet, "loud": CALM_SHARE * per_s}, longer)
        yield "quiet beside one that leaves room", calm
        yield "quiet beside loud", self._case({"quiet": quiet, "loud": loud}, longer)
        yield "one as loud as both", self._case({"one": quiet + loud}, once)
        yield "two with a backlog", self._case({"one": per_s, "loud": per_s}, once)

    def _case(self, rates: dict[str, float], seconds: float) -> Record:
        arrivals = sorted(
            (at_s, tenant)
            for tenant, per_s in rates.items()
            for at_s in self._times(per_s, 0.0, seconds)
        )
        plan = {"requests": [self._request(tenant, at_s) for at_s, tenant in arrivals]}
        records, figures = self._send(plan)
        begin = min(2 * self._options.service_s, seconds / 2)
        mine = outcome.arrived(records, begin, seconds)
        first, *others = rates
        ahead = None
        if others and len(set(rates.values())) == 1:
            ahead = outcome.most_ahead(records, first, others[0], begin, seconds)
        ttft = outcome.ttft_s(each for each in mine if each["tenant"] == first)
        ids = {str(each.get("request_id")) for each in mine if each["tenant"] == first}
        return {
            "num_requests": len(ttft),
            **_percentiles({"ttft": ttft}),
            "stage_p99_s": outcome.stage_p99_s(self._stack.gateway_log(), ids),
            "per_s": outcome.goodput_per_s(records, begin, seconds, math.inf),
            "most_ahead": ahead,
            "codes": outcome.codes(records),
            **figures,
        }

    def _times(self, per_s: float, begin: float, end: float) -> list[float]:
        """Random moments, `per_s` in the mean."""
        times, at_s = [], begin
        while (at_s := at_s + self._random.expovariate(per_s)) < end:
            times.append(at_s)
        return times

    def _request(self, tenant: str, at_s: float = 0.0, due_s: float = 0.0) -> Record:
        self._num_sent += 1
        size = RequestSize(0, _NUM_PROMPT, 0)
        half = self._options.num_output // 2
        headers = {"Authorization": f"Bearer {self._keys[tenant]}"}
        if due_s:
            headers["x-first-token-timeout-s"] = f"{due_s:g}"
        body = {
            "model": MODEL,
            "messages": self._words.messages(f"{self._options.seed}-{self._num_sent}", size),
            "max_tokens": self._random.randint(half, self._options.num_output + half),
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {"tenant": tenant, "at_s": at_s, "headers": headers, "body": body}

    def _send(self, plan: Record) -> tuple[list[Record], Record]:
        """What came of all requests, and the CPU that it took, in cores."""
        pids = self._stack.process.pid, self._client.pid
        watch, began, used_s = CpuWatch(*pids), time.perf_counter(), tree_cpu_s(pids[0])
        waited_s = self._waits_s()
        answer = self._client.ask({"url": self._stack.url, "timeout_s": _TIMEOUT_S, **plan})
        wall_s = time.perf_counter() - began
        records: list[Record] = answer["records"]
        late = [each["sent_s"] - each["at_s"] for each in records if "sent_s" in each]
        return records, {
            "client_late_p99_s": percentile(late, 99),
            "client_cpu": answer["client_cpu"],
            "stack_cpu": (tree_cpu_s(pids[0]) - used_s) / wall_s,
            "waits": {
                name: max(0.0, seconds - waited_s[name]) / wall_s
                for name, seconds in self._waits_s().items()
            },
            "others_cpu": watch.others_s() / wall_s,
        }

    def _waits_s(self) -> dict[str, float]:
        """The seconds for which each process had no core so far."""
        pids = self._stack.pids() | {"client": self._client.pid}
        return {name: tree_wait_s(pid) for name, pid in pids.items()}


def _percentiles(times: dict[str, list[float]]) -> Record:
    return {
        f"{name}_p{percent}_s": percentile(values, percent)
        for name, values in times.items()
        for percent in (50, 99)
    }
