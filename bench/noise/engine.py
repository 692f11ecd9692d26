"""Measures engines beside programs that take the CPUs.

`python -m bench.noise.engine --model baton-demo,tiny --engine baton,vllm` prints a JSON line for
each model, number of threads and engine: steps a second of a batch, alone and beside busy loops in
turns, and their ratio to the fair share, which is what the kernel would give so many equal threads.
Engines and loops are children of this process in its session: the kernel may group processes by
session, and shares the CPUs among groups first.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bench.contenders import Contender, Parity, clean_environment, offline_contender
from bench.noise.loops import busy_loops, folder_of, summary
from bench.workload import WordList

_BATCH = 8
_PROMPT_TOKENS = 100
_WINDOW_S = 3.0
# Makes so many tokens of each of a batch of fresh prompts.
Task = Callable[[int], None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.noise.engine", description=__doc__)
    parser.add_argument("--model", default="baton-demo", help="several: with commas")
    parser.add_argument("--engine", default="baton", help="several: with commas")
    parser.add_argument("--threads", default="1,2", help="several: with commas")
    parser.add_argument("--loops", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of a task; fewer for a slow engine")
    arguments = parser.parse_args()
    for name in arguments.model.split(","):
        folder = folder_of(name)
        for num_threads in map(int, arguments.threads.split(",")):
            for engine in arguments.engine.split(","):
                contender = offline_contender(engine, folder, Parity(num_threads))
                with running(contender, folder) as task:
                    turns = measure(task, arguments.steps, arguments.loops, arguments.rounds)
                record = summary(*turns, num_threads, arguments.loops)
                print(json.dumps({"model": name, "engine": engine, **record}), flush=True)


def measure(
    task: Task, num_steps: int, num_loops: int, num_rounds: int
) -> tuple[list[float], list[float]]:
    """Steps a second alone and beside the loops, window by window in turns."""
    steps_per_s(task, num_steps)  # whatever comes first is slower
    alone, beside = [], []
    for _ in range(num_rounds):
        alone.append(steps_per_s(task, num_steps))
        with busy_loops(num_loops):
            beside.append(steps_per_s(task, num_steps))
    return alone, beside


def steps_per_s(task: Task, num_steps: int) -> float:
    """Over a window, or one task where that is longer. The first step of a task reads prompts."""
    num_done, began_s = 0, time.monotonic()
    while not num_done or time.monotonic() < began_s + _WINDOW_S:
        task(num_steps)
        num_done += num_steps
    return num_done / (time.monotonic() - began_s)


@contextmanager
def running(contender: Contender, folder: Path) -> Iterator[Task]:
    """An engine's runner (engine/offline_runner.py, peers/vllm_offline.py), until the end."""
    words = WordList.of_tokenizer(folder / "tokenizer.json")
    environment = {**clean_environment(), **contender.environment}
    with subprocess.Popen(
        contender.argv,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout
        num_prompts = 0

        def task(num_tokens: int) -> None:
            nonlocal num_prompts
            names = map(str, range(num_prompts, num_prompts + _BATCH))
            num_prompts += _BATCH
            prompts = [words.token_ids(name, _PROMPT_TOKENS) for name in names]
            _ask(requests, answers, {"prompts": prompts, "num_output_tokens": num_tokens})

        try:
            if not answers.readline():
                sys.exit(f"{contender.name} did not start")
            yield task
        finally:
            process.kill()


def _ask(requests: IO[str], answers: IO[str], task: dict[str, object]) -> None:
    requests.write(json.dumps(task) + "\n")
    requests.flush()
    if not answers.readline():
        sys.exit("the engine ended")


if __name__ == "__main__":
    main()
