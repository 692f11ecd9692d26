"""The local stack with a simulated worker: `python -m bench.gateway.simulated_stack up OPTIONS`."""

import sys
from dataclasses import replace
from typing import Any

from baton.cli.__main__ import main as baton
from baton.localstack import plan
from bench.pressure.paced_stack import PacedStack

_WORKER = "bench.gateway.simulated_worker"

_make = plan.make


class SimulatedStack(PacedStack):
    """A running stack in a folder of its own."""

    module = "bench.gateway.simulated_stack"


def make(*arguments: Any, **options: Any) -> plan.Plan:
    """As `plan.make`, with the simulated worker."""
    made = _make(*arguments, **options)
    services = [
        replace(spec, argv=[sys.executable, "-m", _WORKER])
        if spec.argv[-1].endswith("_worker")
        else spec
        for spec in made.services
    ]
    return replace(made, services=services)


if __name__ == "__main__":
    plan.make = make
    baton()
