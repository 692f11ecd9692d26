"""A process that crashes leaves its stack, and nothing of what a user sent."""

import signal
import subprocess
import sys

import pytest

from baton.system.crash_trace import CRASHES

PROGRAM = """
import os, signal, sys
from baton.system.crash_trace import leave_stack

def handle_prompt(text):
    try:
        int(text)
    except ValueError as error:
        raise RuntimeError(text) from error

def take_signal(number):
    os.kill(os.getpid(), number)

signal.signal(signal.SIGSEGV, signal.SIG_IGN)  # as a library might
leave_stack()
handle_prompt("secret" + "-words") if sys.argv[1] == "0" else take_signal(int(sys.argv[1]))
"""


def run(argument: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(argument)]
    return subprocess.run(command, capture_output=True, text=True)


def test_an_error_that_nobody_catches_is_told_by_its_stack_and_without_its_message() -> None:
    done = run(0)
    assert done.returncode == 1
    assert "builtins.ValueError" in done.stderr
    assert "builtins.RuntimeError" in done.stderr
    assert "in handle_prompt" in done.stderr
    assert "secret-words" not in done.stderr


@pytest.mark.parametrize("number", CRASHES)
def test_a_signal_of_a_crash_is_told_by_the_stack_and_ends_the_process(
    number: signal.Signals,
) -> None:
    done = run(number)
    assert done.returncode == -number
    assert "Fatal Python error" in done.stderr
    assert "in take_signal" in done.stderr
