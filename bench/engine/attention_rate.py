"""How fast decode attention reads the KV cache on this CPU, beside a plain read of that memory.

`python -m bench.engine.attention_rate` prints one JSON line for each shape: the layers of a step
one after the other, as a model calls them, without the rest of the model. Best and median of the
rounds; a plain read of the pool between two rounds is the limit.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from baton.engine.protocol.batch import StepBatch
from baton.model.cpu.cpu_attention import CpuAttention
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool
from baton.system.memory_file import create_memory_file, resize_and_map_huge
from baton.wire.kv_spec import KVSpec
from bench.model_shape import ModelShape
from bench.models import SHAPES

BLOCK_SIZE = 16


class _Decodes:
    """A batch of sequences with `num_tokens` tokens each, in a pool of huge pages."""

    def __init__(self, shape: ModelShape, num_seqs: int, num_tokens: int) -> None:
        heads, dim = shape.num_kv_heads, shape.head_dim
        spec = KVSpec.of_layers(BLOCK_SIZE, [(heads, dim, dim, "bfloat16")] * shape.num_layers)
        blocks = spec.num_blocks_for(num_tokens)
        self.num_bytes = num_seqs * num_tokens * shape.kv_bytes_per_token
        num_bytes = num_seqs * blocks * spec.row_bytes
        memory = resize_and_map_huge(create_memory_file("attention-rate"), num_bytes)
        self.memory = torch.frombuffer(memory, dtype=torch.bfloat16, count=num_bytes // 2)
        for part in torch.split(self.memory, 1 << 24):
            part.copy_(torch.randn(len(part)))
        self._pool = KVPool(spec, memoryview(memory)[:num_bytes])
        self._backend = CpuAttention()
        self._backend.bind(self._pool)
        self._batch = StepBatch(
            step=0,
            token_ids=np.zeros(num_seqs, np.int64),
            positions=np.full(num_seqs, num_tokens - 1),
            query_starts=np.arange(num_seqs + 1, dtype=np.int32),
            context_lens=np.full(num_seqs, num_tokens, np.int32),
            block_tables=np.arange(num_seqs * blocks, dtype=np.int32).reshape(num_seqs, blocks),
            seq_ids=[],
            sample_rows=[],
        )
        self._layers = shape.num_layers
        self._form = AttentionForm(dim**-0.5)
        self._query = torch.randn(shape.num_heads, num_seqs, dim).bfloat16()
        self._new = torch.randn(heads, num_seqs, dim).bfloat16()

    def step(self) -> None:
        self._backend.begin_step(self._batch)
        for layer in range(self._layers):
            self._backend.attend(layer, self._query, self._new, self._new, self._form)

    def read(self) -> None:
        self.memory.view(torch.int64).sum()


@torch.inference_mode()
def measure(model: str, num_seqs: int, num_tokens: int, num_rounds: int) -> dict[str, object]:
    """Bytes of keys and values a second, and how much of a plain read's rate that is."""
    decodes = _Decodes(SHAPES[model], num_seqs, num_tokens)
    decodes.step()
    steps, reads = [], []
    for _ in range(num_rounds):
        steps.append(_seconds(decodes.step))
        reads.append(_seconds(decodes.read))
    rate = decodes.num_bytes / min(steps)
    read_rate = decodes.memory.nbytes / min(reads)
    return {
        "model": model,
        "sequences": num_seqs,
        "tokens": num_tokens,
        "threads": torch.get_num_threads(),
        "step_s": {"best": min(steps), "median": statistics.median(steps)},
        "bytes_per_s": rate,
        "read_bytes_per_s": read_rate,
        "share": rate / read_rate,
    }


def _seconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="tiny,small", metavar="A,B", help="of bench/models.py")
    parser.add_argument("--sequences", default="8,32", metavar="N,M", help="that decode at once")
    parser.add_argument("--tokens", type=int, default=1100, help="of each sequence (1100)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--rounds", type=int, default=9, help="steps that are measured (9)")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    for model in options.model.split(","):
        for num_seqs in map(int, options.sequences.split(",")):
            record = measure(model, num_seqs, options.tokens, options.rounds)
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
