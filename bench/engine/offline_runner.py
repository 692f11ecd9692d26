"""Baton's engine in one process, as a runner: `python -m bench.engine.offline_runner OPTIONS`.

OPTIONS are those of a worker's core process, whose engine this is; only the front is missing.
Tasks and answers as in peers/vllm_offline.py.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
import torch

from baton.engine.protocol.messages import AddSequence, Command, SamplingParams
from baton.engine.step.engine import Engine
from baton.system.memory_file import create_memory_file, resize_and_map_huge
from baton.system.prefault import prefault
from baton.worker.core_main import build_engine, parse_options
from bench.contenders import POOL_NAME


class OfflineFront:
    """Plays the front of one engine: sequences in, tokens counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_seq_id = 0

    def run(self, prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        """Generate for all prompts at once; returns the number of tokens that came out."""
        sampling = SamplingParams(num_output_tokens, ignore_eos=True)
        commands: list[Command] = [self._add(prompt, sampling) for prompt in prompts]
        num_tokens = 0
        num_open = len(prompts)
        while num_open:
            events = self._engine.step(commands)
            commands = []
            assert events is not None, "nothing happens although sequences are open"
            assert not events.refused, events.refused
            num_tokens += len(events.token_ids)
            num_open -= len(events.finished)
        return num_tokens

    def _add(self, prompt: Sequence[int], sampling: SamplingParams) -> AddSequence:
        self._next_seq_id += 1
        return AddSequence(
            seq_id=self._next_seq_id,
            request_id=f"bench-{self._next_seq_id}",
            choice=0,
            kind="local",
            token_ids=np.array(prompt, "<u4").tobytes(),
            num_emitted=0,
            block_hashes=b"",
            cache_key=bytes(32),
            sampling=sampling,
            credit=sampling.max_tokens,
        )


def main(argv: Sequence[str]) -> None:
    options = parse_options(argv)
    torch.set_num_threads(options.threads)
    engine = build_engine(options)
    pool_bytes = engine.num_pool_rows * engine.info.kv_spec.row_bytes
    pool_fd = create_memory_file(POOL_NAME)
    pool = resize_and_map_huge(pool_fd, pool_bytes)
    os.close(pool_fd)
    engine.bind_pool(pool)
    if (prefaulting := prefault(pool)) is not None:
        prefaulting.join()
    front = OfflineFront(engine)
    versions = {
        name: metadata.version(name) for name in ("baton-serving-core", "torch", "transformers")
    }
    _announce({"versions": versions, "threads": options.threads})
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        num_tokens = front.run(task["prompts"], task["num_output_tokens"])
        _announce({"wall_s": time.perf_counter() - started, "num_output_tokens": num_tokens})


def _announce(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
