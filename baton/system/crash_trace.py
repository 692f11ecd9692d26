"""The stack that a core leaves on stderr when it crashes: the place of each thread in the code.

No message of an exception is printed, because it may quote what a user sent.
"""

import faulthandler
import os
import signal
import sys
import traceback
from types import TracebackType

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
EXIT_CRASHED = 1


def leave_stack() -> None:
    """Have this process end with its stack on stderr, at once, whatever ends it but SIGKILL.

    Called again it takes the place of handlers that a library has installed since. A process that
    is forked inherits it.
    """
    sys.excepthook = end_with_stack
    faulthandler.disable()
    for number in CRASHES:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()


def end_with_stack(
    kind: type[BaseException], error: BaseException, _trace: TracebackType | None
) -> None:
    """Print where the error came from, and that which caused it, and end the process.

    Taking torch or vLLM apart would take seconds, in which the process seems to stand still.
    """
    print_stack(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_CRASHED)


def print_stack(error: BaseException) -> None:
    """Print the frames of an error and of those that caused it, the first cause first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        print_stack(cause)
    print("Traceback (most recent call last; messages are left out):", file=sys.stderr)
    traceback.print_tb(error.__traceback__, file=sys.stderr)
    kind = type(error)
    print(f"{kind.__module__}.{kind.__qualname__}", file=sys.stderr)
