"""Measures the engine besides the model: bookkeeping per step, block manager per block.

`python -m bench.engine.core_costs` prints one JSON line per measurement; needs no torch. Times are
the best and the median of many windows, so that a busy machine shows in the second one alone.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from baton.engine.kv.block_manager import BlockManager, PrefixMatch
from baton.engine.protocol.messages import AddSequence, SamplingParams
from baton.engine.sequence.sequence import Sequence
from baton.engine.step.engine import Engine, EngineConfig
from baton.system.clock import SystemClock
from bench.engine.null_runner import NullRunner

# By the number of sequences that decode.
STEP_AIMS_S = {32: 0.15e-3, 256: 0.5e-3, 512: 0.9e-3}
BLOCK_AIM_S = 2e-6
_BLOCK_SIZE = 16
# Every sequence fills a block once in so many steps.
_WINDOW_STEPS = _BLOCK_SIZE
_NUM_WINDOWS = 60
_NUM_BLOCKS = 100_000
_SEQUENCE_BLOCKS = 64
_PROMPT_TOKENS = 1025


def main() -> None:
    for record in [*map(measure_step, STEP_AIMS_S), *measure_blocks()]:
        print(json.dumps(record), flush=True)


def measure_step(batch: int) -> dict[str, object]:
    """CPU seconds of one decode step around the runner, events packed for the front included."""
    engine = _decoding_engine(batch)
    encoder = msgspec.msgpack.Encoder()
    windows, largest = [], 0.0
    for _ in range(_NUM_WINDOWS):
        started = time.process_time()
        for _ in range(_WINDOW_STEPS):
            step_started = time.process_time()
            events = engine.step([])
            encoder.encode(events)
            largest = max(largest, time.process_time() - step_started)
            assert events is not None
            assert len(events.token_ids) == batch, "not all of the batch decoded"
        windows.append((time.process_time() - started) / _WINDOW_STEPS)
    times = {**_best_and_median(windows), "largest_s": largest}
    return {"measure": "step", "batch": batch, "aim_s": STEP_AIMS_S[batch], **times}


def measure_blocks() -> Iterator[dict[str, object]]:
    """Seconds per block of each operation on a full prefix cache: misses that evict, and hits."""
    manager = BlockManager(_NUM_BLOCKS, _BLOCK_SIZE, "bench")
    num_sequences = _NUM_BLOCKS // _SEQUENCE_BLOCKS
    for index in range(num_sequences):
        _pass_through(manager, _sequence(manager, index))
    # The second time around, all of them are in the cache.
    sequences = [_sequence(manager, num_sequences + index) for index in range(num_sequences)]
    for case in ("miss", "hit"):
        costs = [_pass_through(manager, seq) for seq in sequences]
        for operation in costs[0]:
            per_block = [cost[operation] / _SEQUENCE_BLOCKS for cost in costs]
            yield {
                "measure": "blocks",
                "case": case,
                "operation": operation,
                "num_blocks": _NUM_BLOCKS,
                "aim_s": BLOCK_AIM_S,
                **_best_and_median(per_block),
            }


def _pass_through(manager: BlockManager, seq: Sequence) -> dict[str, float]:
    """Seconds of each stage of one sequence's life. Its hashes are known before."""
    costs: dict[str, float] = {}

    def timed(name: str, action: Callable[[], object]) -> None:
        started = time.perf_counter()
        action()
        costs[name] = time.perf_counter() - started

    manager.match_prefix(seq)  # hashes, once
    matches: list[PrefixMatch] = []
    timed("match", lambda: matches.append(manager.match_prefix(seq)))
    timed("allocate", lambda: manager.allocate(seq, matches[0]))
    seq.num_computed_tokens = seq.num_tokens
    timed("register", lambda: manager.register_full_blocks(seq))
    timed("free", lambda: manager.free(seq))
    manager.take_kv_events()
    return costs


def _sequence(manager: BlockManager, index: int) -> Sequence:
    numbers = random.Random(index)
    tokens = [numbers.randrange(32_000) for _ in range(_SEQUENCE_BLOCKS * _BLOCK_SIZE + 1)]
    request = _request(index, tokens, max_tokens=1)
    return Sequence(request, index, manager.root_hash(request))


def _decoding_engine(batch: int) -> Engine:
    """An engine whose sequences have all been prefilled. The first of them decode meanwhile, and
    have to last as long as the others."""
    num_steps = _NUM_WINDOWS * _WINDOW_STEPS + 100 + 2 * batch
    num_blocks = batch * ((_PROMPT_TOKENS + num_steps) // _BLOCK_SIZE + 2)
    config = EngineConfig("bench", "bench", "1", num_blocks, max_num_seqs=batch, max_waiting=batch)
    engine = Engine(config, NullRunner(_BLOCK_SIZE), SystemClock())
    prompts = [[index] * _PROMPT_TOKENS for index in range(batch)]
    requests = [_request(i, tokens, max_tokens=num_steps) for i, tokens in enumerate(prompts)]
    events = engine.step(requests)
    while events is None or len(events.token_ids) < batch:
        events = engine.step([])
    return engine


def _request(seq_id: int, tokens: Iterable[int], max_tokens: int) -> AddSequence:
    return AddSequence(
        seq_id=seq_id,
        request_id=f"bench-{seq_id}",
        choice=0,
        kind="local",
        token_ids=np.array(tokens, "<u4").tobytes(),
        num_emitted=0,
        block_hashes=b"",
        cache_key=bytes(32),
        sampling=SamplingParams(max_tokens, ignore_eos=True),
        credit=max_tokens,
    )


def _best_and_median(times: list[float]) -> dict[str, float]:
    return {"best_s": min(times), "median_s": statistics.median(times)}


if __name__ == "__main__":
    main()
