"""What holds for every test.

Without a GPU, Triton's kernels are interpreted: it reads this once, when it is imported. And how
long an example of Hypothesis takes says more about the machine than about what is tested.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.kit.kube.real_api_server import RealApiServer

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Collecting among the millions of objects that imports make, and which stay, took a third of the
# time to import the unit tests. The run of the tests begins by turning the collector on again.
gc.disable()

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Keep modules and tests, which stay, out of each collection of garbage: it would take 0.1 s in
    the unit tests, and 0.4 s with torch and transformers."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def real_api_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RealApiServer]":
    """Of `KUBEBUILDER_ASSETS`; tests that take it are only there where that is set."""
    from tests.kit.kube.real_api_server import RealApiServer

    with RealApiServer(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The sums of what tests counted (`record_property`), whichever process ran them."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    sums: Counter[str] = Counter()
    for report in reports:
        if getattr(report, "when", "") == "call":
            counts = {name: n for name, n in report.user_properties if isinstance(n, int)}
            sums.update(counts)
    for name, number in sums.items():
        terminalreporter.write_line(f"{name}: {number:,}")
