"""Measures what a token costs a worker's front when its core runs vLLM's engine.

`python -m bench.engine.front_costs VLLM_PYTHON MODEL BATCH` prints one JSON line: the CPU time of
this process, which has a worker's client and dispatcher and nothing else, for each token of BATCH
sequences at once. The least of a few runs.
"""

import asyncio
import json
import os
import random
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import uvloop

from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.messages import AddSequence, Finished, SamplingParams, TokenLogprobs
from baton.system.clock import SystemClock
from baton.worker.dispatch import EngineDispatcher, SequenceEvent

_ROOT = Path(__file__).parents[2]
_NUM_TOKENS, _NUM_PROMPT, _NUM_RUNS = 100, 12, 4


class _Listener:
    """Counts tokens."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.is_over = asyncio.Event()

    def on_event(self, event: SequenceEvent) -> None:
        if isinstance(event, Finished):
            self.is_over.set()

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        self.num_tokens += 1


async def measure(python: str, model: str, batch: int) -> dict[str, Any]:
    """Start a core, and run the batch a few times."""
    options = ["--model", model, "--kv-memory", "256MiB", "--max-model-len", "2048"]
    spec = EngineSpec("baton.engines.vllm.core_main", python, {"PYTHONPATH": str(_ROOT)})
    client = await ProcessEngineClient.start(spec, [*options, "--threads", "1"])
    dispatcher = EngineDispatcher(client, SystemClock())
    running = asyncio.create_task(dispatcher.run())
    try:
        runs = [await _run(dispatcher, batch, number) for number in range(_NUM_RUNS)]
    finally:
        running.cancel()
        await client.close()
    return {
        "engine": client.info.engine,
        "batch": batch,
        "cpu_s_per_token": min(cpu_s for cpu_s, _ in runs),
        "tokens_per_s": max(rate for _, rate in runs),
    }


async def _run(dispatcher: EngineDispatcher, batch: int, number: int) -> tuple[float, float]:
    """CPU seconds a token, and tokens a second."""
    listeners = [_Listener() for _ in range(batch)]
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for place, listener in enumerate(listeners):
        seq_id = dispatcher.open(listener, f"request-{number}-{place}")
        dispatcher.send(_add(seq_id))
    for listener in listeners:
        await listener.is_over.wait()
    num_tokens = sum(listener.num_tokens for listener in listeners)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    assert num_tokens == batch * _NUM_TOKENS, num_tokens
    return cpu_s / num_tokens, num_tokens / wall_s


def _add(seq_id: int) -> AddSequence:
    tokens = random.Random(seq_id).choices(range(3, 2000), k=_NUM_PROMPT)
    return AddSequence(
        seq_id=seq_id,
        request_id=f"request-{seq_id}",
        choice=0,
        kind="local",
        token_ids=array("I", tokens).tobytes(),
        num_emitted=0,
        block_hashes=b"",
        cache_key=bytes(32),
        sampling=SamplingParams(_NUM_TOKENS, ignore_eos=True),
        credit=_NUM_TOKENS,
    )


if __name__ == "__main__":
    python, model, batch = sys.argv[1:]
    # vLLM's core logs to stdout: the answer gets a descriptor of its own.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(python, model, int(batch)))), file=answer, flush=True)
