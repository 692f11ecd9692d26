"""A core process with a FakeRunner: `python -m baton.testing.fake_core FDS [--num-blocks N ...]`.

It is for tests that need real processes and real shared memory but no model.
"""

import argparse
import sys
import time

from baton.engine.process.core import CoreLink, serve
from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.step.engine import Engine, EngineConfig
from baton.system.clock import SystemClock
from baton.testing.fake_runner import FakeRunner

FAKE_MODEL_FP = "fake-model"


class SlowRunner(FakeRunner):
    """A FakeRunner whose steps take `step_s` seconds each."""

    def __init__(self, step_s: float, mean_output_tokens: int) -> None:
        super().__init__(mean_output_tokens=mean_output_tokens)
        self._step_s = step_s

    def run(self, batch: StepBatch) -> StepResult:
        time.sleep(self._step_s)
        return super().run(batch)


def main(argv: list[str]) -> None:
    link, args = CoreLink.from_argv(argv)
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-blocks", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--mean-output-tokens", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0, help="how long each step takes")
    parser.add_argument("--refuse", default="", help="fail to load with this message")
    options = parser.parse_args(args)
    if options.refuse:
        link.refuse(options.refuse)
        return
    runner = SlowRunner(options.step_s, options.mean_output_tokens)
    config = EngineConfig(
        model_fp=FAKE_MODEL_FP,
        model_name="fake",
        model_revision="1",
        num_blocks=options.num_blocks,
        max_num_seqs=options.max_num_seqs,
    )
    serve(link, Engine(config, runner, SystemClock()))


if __name__ == "__main__":
    main(sys.argv[1:])
