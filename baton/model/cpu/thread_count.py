"""How many threads a step computes in: all, or one while other programs take the CPUs.

The threads of a step meet dozens of times. Where each waits for a CPU again and again, a step takes
as long as all these waits together. One thread meets nobody, and is then the faster one
(docs/benchmarks/engine-cpu.md, "Beside other programs"). Results do not depend on it where they
must not (`csrc/attention.h`, `is_fixed`).
"""

import time
from collections.abc import Callable

from baton.system.cpu_wait import own_wait_s

# A look costs some 0.1 ms.
LOOK_S = 0.05
# The part of the time in which each thread waits for a CPU: above the first one thread computes;
# when it waits for less than the second, all do again.
CROWDED, CALM = 0.3, 0.15


class ThreadCount:
    """Looks at this process's waits from time to time, while steps are computed."""

    def __init__(
        self,
        waited_s: Callable[[], float] = own_wait_s,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waited_s, self._now_s = waited_s, now_s
        self._looked_s = self._waited_before_s = 0.0
        self._is_crowded = False
        self._most = 1

    def next(self, current: int) -> int:
        """The threads of the next step; `current`: those of this process now, which are all that
        there are unless this object said one."""
        if not self._is_crowded:
            self._most = current
        if self._most > 1 and self._now_s() >= self._looked_s + LOOK_S:
            self._look(1 if self._is_crowded else self._most)
        return 1 if self._is_crowded else self._most

    def _look(self, num_threads: int) -> None:
        now_s, waited_s = self._now_s(), self._waited_s()
        elapsed_s = now_s - self._looked_s
        share = (waited_s - self._waited_before_s) / elapsed_s / num_threads
        self._looked_s, self._waited_before_s = now_s, waited_s
        self._is_crowded = share > (CALM if self._is_crowded else CROWDED)
