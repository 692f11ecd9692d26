"""What every engine tells of its steps and of its end."""

import os
import signal
from pathlib import Path

import psutil

from tests.engines.driven_core import DrivenCore


def test_a_step_tells_how_much_it_computed(core: DrivenCore) -> None:
    core.step_sizes.clear()
    core.answer(list(range(300, 350)), max_tokens=3, ignore_eos=True, cache_key=os.urandom(32))
    *prompt, first, second = core.step_sizes  # the prompt may be cut into several steps
    assert sum(num_tokens for num_tokens, _ in prompt) == 50
    assert first == second == (1, 1)


def test_a_crash_ends_a_core_at_once(core: DrivenCore) -> None:
    """No library handles the signals of a crash: its report would take seconds, in which the core
    looks as if it stood still, and nobody is suspected of its death."""
    crashes = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
    process = psutil.Process(core.client.pid)
    for each in (process, *process.children()):
        status = Path(f"/proc/{each.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        assert not [number.name for number in crashes if caught >> (number - 1) & 1]
