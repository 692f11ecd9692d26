"""A worker's core whose steps take a set time: it waits where a model would compute.

So a machine with few cores can be asked for more than a whole stack serves, while its gateway and
router still have a core. Everything else is the product's: queue, batch, blocks, handoff, reports.
The tokens are one word, again and again. Run by `bench/pressure/paced_stack.py`.
"""

import gc

# As the product's core, which this one is but for its runner.
if __name__ == "__main__":
    gc.disable()

import sys
from typing import Any

from baton.engine.protocol.runner import Runner
from baton.model.device import make_runner
from baton.model.load.load import LoadedModel
from baton.worker import core_main
from bench.pressure.pace import Pace, PacedRunner


def make_paced(*arguments: Any, **options: Any) -> tuple[Runner, LoadedModel]:
    """As `baton.model.device.make_runner`."""
    runner, loaded = make_runner(*arguments, **options)
    paced: Any = PacedRunner(runner, Pace.of_environment())
    return paced, loaded


if __name__ == "__main__":
    core_main.end_process(core_main.main(sys.argv[1:], make_paced))
