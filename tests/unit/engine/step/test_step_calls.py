"""The engine's work for one token is bounded, counted in Python calls: no machine changes those."""

import sys
from pathlib import Path
from types import FrameType

import baton.engine
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BATCH = 32
NUM_STEPS = 16
MAX_CALLS_PER_TOKEN = 40
ENGINE_FOLDER = str(Path(baton.engine.__file__).parent)


def test_a_token_of_a_full_batch_takes_few_calls() -> None:
    runner = FakeRunner(block_size=16, mean_output_tokens=0)
    engine = EngineDriver(runner, num_blocks=400, max_num_seqs=BATCH).engine
    engine.step([add_sequence(i, range(i, i + 20), max_tokens=100) for i in range(1, BATCH + 1)])
    num_calls = num_tokens = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal num_calls
        num_calls += event == "call" and frame.f_code.co_filename.startswith(ENGINE_FOLDER)

    for _ in range(NUM_STEPS):
        sys.setprofile(count)
        events = engine.step([])
        sys.setprofile(None)
        assert events is not None
        num_tokens += len(events.token_ids)
    assert num_tokens == BATCH * NUM_STEPS
    assert num_calls / num_tokens <= MAX_CALLS_PER_TOKEN
