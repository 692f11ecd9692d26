"""A worker's core with the real model, which dies of one prompt (poison.py).

Run by poisoned_worker.py; no product code knows it.
"""

import os
import signal
import sys
from typing import Any

import numpy as np

from baton.engine.process.core import CoreLink, serve
from baton.engine.protocol.batch import StepBatch, StepResult
from baton.worker import core_main
from tests.chaos.poison import POISON_PROMPT, POISON_TOKEN


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


def main(argv: list[str]) -> None:
    link, rest = CoreLink.from_argv(argv)
    engine = core_main.build_engine(core_main.parse_options(rest))
    engine.runner = PoisonedRunner(engine.runner)
    serve(link, engine)


if __name__ == "__main__":
    main(sys.argv[1:])
