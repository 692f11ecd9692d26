"""`baton up` whose workers of one model, TWIN, run vLLM's engine; those of others run Baton's."""

import os
from dataclasses import replace
from typing import Any

from baton.cli.__main__ import main
from baton.localstack import plan

TWIN = "baton-twin"
_make = plan.make


def make(*arguments: Any, **options: Any) -> plan.Plan:
    made = _make(*arguments, **options)
    vllm = {
        "BATON_WORKER_ENGINE": "vllm",
        "BATON_WORKER_ENGINE_PYTHON": os.environ["BATON_VLLM_PYTHON"],
    }
    services = [
        replace(spec, environment={**spec.environment, **vllm}) if TWIN in spec.name else spec
        for spec in made.services
    ]
    return replace(made, services=services)


if __name__ == "__main__":
    plan.make = make
    main()
