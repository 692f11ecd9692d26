"""The chart before a real API server, which validates and admits but runs nothing.

Only with `KUBEBUILDER_ASSETS`: no stub can say what a server admits.
"""

import os

import pytest

# Without its programs there is nothing to ask.
collect_ignore_glob = [] if os.environ.get("KUBEBUILDER_ASSETS") else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The kinds that the server was not asked about, whichever process ran the test."""
    told = {
        (name, value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in getattr(report, "user_properties", ())
        if name.startswith("left aside")
    }
    for name, value in sorted(told):
        terminalreporter.write_line(f"{name}: {value}")
