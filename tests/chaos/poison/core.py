"""A worker's core with the real model, which dies of one prompt (prompt.py).

Run by worker.py; no product code knows it.
"""

import gc

# As the product's core, which this one is but for its runner.
if __name__ == "__main__":
    gc.disable()

import os
import signal
import sys
from typing import Any

import numpy as np

from baton.engine.protocol.batch import StepBatch, StepResult
from baton.engine.protocol.runner import Runner
from baton.model.device import make_runner
from baton.model.load.load import LoadedModel
from baton.worker import core_main
from tests.chaos.poison.prompt import POISON_PROMPT, POISON_TOKEN


class PoisonedRunner:
    """Ends its process in a step that computes the poison."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: StepBatch) -> StepResult:
        is_poison = batch.token_ids == POISON_TOKEN
        if np.convolve(is_poison, np.ones(len(POISON_PROMPT))).max() == len(POISON_PROMPT):
            os.kill(os.getpid(), signal.SIGSEGV)
        return self._inner.run(batch)


def make_poisoned(*arguments: Any, **options: Any) -> tuple[Runner, LoadedModel]:
    """As `baton.model.device.make_runner`."""
    runner, loaded = make_runner(*arguments, **options)
    return PoisonedRunner(runner), loaded


if __name__ == "__main__":
    core_main.end_process(core_main.main(sys.argv[1:], make_poisoned))
