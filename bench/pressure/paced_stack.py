"""The local stack with paced cores (`bench/pressure/paced_core.py`), and its workers' programs.

`python -m bench.pressure.paced_stack up OPTIONS` is `baton up` but for the cores; with `worker` and
a role it is one worker. Also starts it from a benchmark, and makes keys for tenants there.
"""

import importlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from baton.cli.__main__ import main as baton
from baton.localstack import plan
from baton.localstack.home import Home, StackState
from bench.contenders import clean_environment
from bench.measured_process import MeasuredProcess

_MODULE = "bench.pressure.paced_stack"
_CORE = "bench.pressure.paced_core"
_START_TIMEOUT_S = 240.0
_POLL_S = 0.05
MODEL = "baton-demo"

_make = plan.make


def make(*arguments: Any, **options: Any) -> plan.Plan:
    """As `plan.make`, with workers whose cores are paced."""
    made = _make(*arguments, **options)
    services = []
    for spec in made.services:
        if spec.argv[-1].endswith("_worker"):
            role = spec.argv[-1].removeprefix("services.").removesuffix("_worker")
            spec = replace(spec, argv=[sys.executable, "-m", _MODULE, "worker", role])
        services.append(spec)
    return replace(made, services=services)


@dataclass(slots=True)
class PacedStack:
    """A running stack in a folder of its own. `module` is its `baton up`."""

    module: ClassVar[str] = _MODULE
    process: MeasuredProcess
    home: Home
    environment: Mapping[str, str]

    @classmethod
    def start(cls, options: Mapping[str, object], variables: Mapping[str, str], log: Path) -> Self:
        """Start a stack with these options of `baton up` and wait until it is ready. `variables`:
        more of the environment of all its processes.

        Raises RunnerFailed.
        """
        folder = Path(tempfile.mkdtemp(prefix="baton-bench-"))
        environment = {
            **clean_environment(),
            "BATON_HOME": str(folder / "home"),
            # Spans' receiver is not a part of a deployment.
            "OTEL_TRACES_SAMPLER_ARG": "0",
            **variables,
            "OMP_NUM_THREADS": "1",
        }
        words = [str(word) for pair in options.items() for word in pair]
        argv = [sys.executable, "-m", cls.module, "up", "--port", "0", *words]
        stack = cls(MeasuredProcess(argv, log, environment), Home(folder / "home"), environment)
        try:
            stack._wait_until_ready()
        except BaseException:
            stack.stop()
            raise
        return stack

    @property
    def state(self) -> StackState | None:
        return self.home.read_state()

    @property
    def url(self) -> str:
        return f"{self.home.read_dev_env()['BASE_URL']}/chat/completions"

    def pids(self) -> dict[str, int]:
        """The processes of the stack by their names; a worker's core is its child."""
        state = self.state
        return {name: int(row["pid"]) for name, row in state.services.items()} if state else {}

    def key(self, tenant: str) -> str:
        """Make a key of this tenant."""
        argv = [sys.executable, "-m", "baton.cli", "keys", "create", "--tenant", tenant]
        done = subprocess.run(
            argv, env=dict(self.environment), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def gateway_log(self) -> list[str]:
        """The lines that the gateway has written."""
        return (self.home.logs / "gateway.log").read_text().splitlines()

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self.home.root.parent, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while (state := self.state) is None or not state.ready:
            if self.process.process.poll() is not None or time.monotonic() > deadline_s:
                raise self.process.failure()
            time.sleep(_POLL_S)


def main() -> None:
    """Entry point of `python -m bench.pressure.paced_stack`."""
    if sys.argv[1] == "worker":
        from baton.worker import program

        program.CORE_MODULE = _CORE
        importlib.import_module(f"services.{sys.argv[2]}_worker.__main__").main()
    else:
        plan.make = make
        baton()


if __name__ == "__main__":
    main()
