"""`baton` whose local stacks run workers with poisoned cores (poison/worker.py), and start again
at once what dies: here that happens every few seconds, which is no crash loop."""

from dataclasses import replace
from typing import Any

from baton.cli.__main__ import main
from baton.localstack import plan, supervisor

_make = plan.make


def make(*arguments: Any, **options: Any) -> plan.Plan:
    made = _make(*arguments, **options)
    services = []
    for spec in made.services:
        if spec.argv[-1].endswith("_worker"):
            role = spec.argv[-1].removeprefix("services.").removesuffix("_worker")
            spec = replace(spec, argv=[*spec.argv[:-1], "tests.chaos.poison.worker", role])
        services.append(spec)
    return replace(made, services=services)


if __name__ == "__main__":
    plan.make = make
    supervisor._MAX_BACKOFF_S = supervisor._FIRST_BACKOFF_S
    main()
