"""The thread that works for grammar states, cheapest state first.

A grammar that takes long waits behind the others, so that its neighbours' masks are not late
because of it. Nothing is preempted: what runs, runs to its end, which the compiler's limits bound.
One thread, because states of one grammar share the library's automaton under a lock.
"""

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from baton.engine.grammar.state import GrammarState

_Job = tuple[float, int, GrammarState, Callable[[], None]]


class StateWorker(Protocol):
    """Runs the jobs of grammar states."""

    def submit(self, state: GrammarState, job: Callable[[], None]) -> None:
        """Run `job` and then end the state's work, which has begun. From any thread."""


class MaskThread:
    """Bounded by the sequences: each has one state, and each state one job at a time."""

    def __init__(self) -> None:
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        # A daemon: the process does not wait for it at its end.
        self._thread = threading.Thread(target=self._run, name="grammar-masks", daemon=True)
        self._thread.start()

    def submit(self, state: GrammarState, job: Callable[[], None]) -> None:
        self._jobs.put((state.spent_s, next(self._numbers), state, job))

    def _run(self) -> None:
        while True:
            _, _, state, job = self._jobs.get()
            try:
                job()
            except BaseException as error:
                # A bug of ours: the engine's next look at the work raises it, and the core ends.
                state.work.set_exception(error)
                raise
            state.work.set_result(None)
