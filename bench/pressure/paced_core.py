"""A worker's core whose steps take a set time: it waits where a model would compute.

So a machine with few cores can be asked for more than a whole stack serves, while its gateway and
router still have a core. Everything else is the product's: queue, batch, blocks, handoff, reports.
The tokens are one word, again and again. Run by `bench/pressure/paced_stack.py`.
"""

import gc

# As the product's core, which this one is but for its runner.
if __name__ == "__main__":
    gc.disable()

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.runner import Runner
from baton.model.device import make_runner
from baton.model.load.load import LoadedModel
from baton.worker import core_main

VARIABLE = "BENCH_PACE"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step with a decode in it, and of each prompt token; the token that comes."""

    decode_s: float
    prompt_token_s: float
    token_id: int

    @classmethod
    def of_environment(cls) -> Self:
        decode_s, prompt_token_s, token_id = os.environ[VARIABLE].split(",")
        return cls(float(decode_s), float(prompt_token_s), int(token_id))

    def __str__(self) -> str:
        return f"{self.decode_s},{self.prompt_token_s},{self.token_id}"

    def step_s(self, batch: StepBatch) -> float:
        """The time of this step: one query token is a decode, more are of a prompt."""
        num_tokens = np.diff(batch.query_starts)
        num_prompt_tokens = int(num_tokens[num_tokens > 1].sum())
        decode_s = self.decode_s if (num_tokens == 1).any() else 0.0
        return decode_s + self.prompt_token_s * num_prompt_tokens


class PacedRunner:
    """The runner of the model, but for the steps."""

    def __init__(self, inner: Any, pace: Pace, sleep: Callable[[float], None] = time.sleep) -> None:
        self._inner = inner
        self._pace = pace
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: StepBatch) -> StepResult:
        self._sleep(self._pace.step_s(batch))
        return StepResult(np.full(len(batch.sample_rows), self._pace.token_id, np.int64))


def make_paced(*arguments: Any, **options: Any) -> tuple[Runner, LoadedModel]:
    """As `baton.model.device.make_runner`."""
    runner, loaded = make_runner(*arguments, **options)
    paced: Any = PacedRunner(runner, Pace.of_environment())
    return paced, loaded


if __name__ == "__main__":
    core_main.end_process(core_main.main(sys.argv[1:], make_paced))
