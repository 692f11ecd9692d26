"""Ends a child process when its parent dies, even if the child hangs (Linux; a no-op elsewhere)."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that spawned it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
