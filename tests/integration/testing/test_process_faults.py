"""Signals at real processes: each is verified, and one at a wrong pid fails its test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from baton.testing.faults import FaultDidNotHappen
from baton.testing.process_faults import ProcessFault, WrongTarget, process_state

# A process with two threads, which says when it stands.
PATIENT = """
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PATIENT


def start(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = start(PATIENT)
    yield process
    end(process)


def fault_at(process: subprocess.Popen[bytes]) -> ProcessFault:
    return ProcessFault(process.pid, stack_pid=os.getpid())


def test_a_killed_process_is_gone(child: subprocess.Popen[bytes]) -> None:
    fault_at(child).kill().verify()
    assert child.wait() == -signal.SIGKILL


def test_a_terminated_process_leaves(child: subprocess.Popen[bytes]) -> None:
    fault_at(child).terminate().verify()
    assert child.wait() == -signal.SIGTERM


def test_a_stopped_process_stands_still_until_it_is_resumed(
    child: subprocess.Popen[bytes],
) -> None:
    fault = fault_at(child)
    fault.stop().verify()
    state = process_state(child.pid)
    assert state is not None
    assert state.state == "T"
    fault.resume().verify()
    assert fault.is_alive()


def test_a_fault_at_a_process_of_somebody_else_fails_its_test(
    child: subprocess.Popen[bytes],
) -> None:
    with pytest.raises(WrongTarget, match="not one of the stack"):
        ProcessFault(os.getppid(), stack_pid=child.pid)
    with pytest.raises(WrongTarget, match="not one of the stack"):
        ProcessFault(os.getpid(), stack_pid=child.pid)


def test_a_fault_at_a_dead_process_fails_its_test(child: subprocess.Popen[bytes]) -> None:
    fault = fault_at(child)
    fault.kill().verify()
    # Dead and not waited for yet, then gone for good.
    for _ in range(2):
        with pytest.raises(WrongTarget, match="dead already"):
            fault.stop()
        with pytest.raises(WrongTarget, match="dead already"):
            fault_at(child)
        child.wait()


def test_a_pid_that_is_used_again_is_not_hit(child: subprocess.Popen[bytes]) -> None:
    fault = fault_at(child)
    # As if the first process with this pid had ended and this one had come after it.
    fault._start_ticks -= 1
    with pytest.raises(WrongTarget, match="dead already"):
        fault.kill()
    assert child.poll() is None


def test_a_signal_without_effect_fails_its_test() -> None:
    process = start(STUBBORN)
    try:
        with pytest.raises(FaultDidNotHappen, match="SIGTERM"):
            fault_at(process).terminate().verify(timeout_s=0.1)
    finally:
        end(process)


def test_a_resumed_process_that_has_died_fails_its_test(child: subprocess.Popen[bytes]) -> None:
    fault = fault_at(child)
    fault.stop().verify()
    fault.resume()
    child.kill()
    child.wait()
    with pytest.raises(FaultDidNotHappen, match="gone"):
        fault.verify(timeout_s=0.1)
