"""Measures servers beside programs that take the CPUs.

`python -m bench.noise.served --model baton-demo,tiny --engine baton,vllm` prints a JSON line for
each model, number of threads and server: tokens a second of streams, alone and beside busy loops in
turns, their ratio to the fair share of so many threads (bench/noise/loops.py), and how many
requests failed. A whole stack has more threads than its engine; the share is the engine's.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.contenders import Parity
from bench.noise.loops import busy_loops, folder_of, summary
from bench.serving.served import ServedBench, ServedPlan
from bench.serving.servers import Server
from bench.workload import RequestSize

_CLIENTS = 8
_SIZE = RequestSize(num_shared=0, num_own=100, num_output=48)
_WINDOW_S = 3.0
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.noise.served", description=__doc__)
    parser.add_argument("--model", default="baton-demo", help="several: with commas")
    parser.add_argument("--engine", default="baton", help="several: with commas")
    parser.add_argument("--threads", default="1,2", help="several: with commas")
    parser.add_argument("--loops", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    engines = arguments.engine.split(",")
    with shares_by_thread(), tempfile.TemporaryDirectory() as logs:
        for name in arguments.model.split(","):
            folder = folder_of(name)
            for threads in map(int, arguments.threads.split(",")):
                plan = ServedPlan(
                    name, folder, engines, [_CLIENTS], _SIZE, 1, parity=Parity(threads)
                )
                for record in measured(plan, Path(logs), arguments.loops, arguments.rounds):
                    print(json.dumps(record), flush=True)


def measured(
    plan: ServedPlan, logs: Path, num_loops: int, num_rounds: int
) -> Iterator[dict[str, object]]:
    """A record of each server; all run, and one is measured at a time."""
    with ExitStack() as stack:
        bench = ServedBench(plan, logs, stack)
        for engine in plan.engines:
            if "error" in (started := bench.start(engine)):
                raise SystemExit(f"{engine}: {started['error']}")
        turns = {server.name: Turns(bench, server) for server in bench.servers}
        for _ in range(num_rounds):
            for each in turns.values():
                each.take(num_loops)
        for name, each in turns.items():
            record = summary(each.alone, each.beside, plan.parity.num_threads, num_loops)
            yield {"model": plan.model, "engine": name, **record, "failed": each.num_failed}


class Turns:
    """Tokens a second of one server, window by window, alone and beside loops in turns."""

    def __init__(self, bench: ServedBench, server: Server) -> None:
        self.alone: list[float] = []
        self.beside: list[float] = []
        self.num_failed = 0
        self._bench, self._server = bench, server
        self._num_runs = 0

    def take(self, num_loops: int) -> None:
        self.alone.append(self._tokens_per_s())
        with busy_loops(num_loops):
            self.beside.append(self._tokens_per_s())

    def _tokens_per_s(self) -> float:
        """Over a window, or one run of all clients where that is longer."""
        num_tokens, wall_s, began_s = 0, 0.0, time.monotonic()
        while not num_tokens or time.monotonic() < began_s + _WINDOW_S:
            self._num_runs += 1
            run = self._bench.measure(self._server, _CLIENTS, f"{self._num_runs}-")
            self.num_failed += run["num_errors"]
            if not run["num_output_tokens"]:
                return 0.0
            num_tokens += run["num_output_tokens"]
            wall_s += run["wall_s"]
        return num_tokens / wall_s


@contextmanager
def shares_by_thread() -> Iterator[None]:
    """The kernel shares the CPUs among threads, not first among sessions: a stack's processes have
    a session each, vLLM's have one, and the loops too. Needs root where it groups them."""
    if not _AUTOGROUP.exists() or (before := _AUTOGROUP.read_text()).strip() == "0":
        yield
        return
    try:
        _AUTOGROUP.write_text("0")
    except OSError as error:
        raise SystemExit(f"the kernel groups processes by session: {error}") from None
    try:
        yield
    finally:
        _AUTOGROUP.write_text(before)


if __name__ == "__main__":
    main()
