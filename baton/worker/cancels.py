"""How long a cancelled request keeps its blocks: from the peer's word to the core's.

The core applies an abort between two steps, so that this is about one step. A peer of its own frees
what it holds for the same request, and measures that itself.
"""

from collections.abc import Sequence
from enum import StrEnum

from baton.worker import instruments
from baton.worker.deps import WorkerDeps


class Phase(StrEnum):
    """How far a request, or one choice of it, has come on a worker."""

    GRAMMAR = "grammar"  # its grammar is to be tried
    QUEUE = "queue"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    DECODE = "decode"
    ENDED = "ended"


def observe_cancel(deps: WorkerDeps, phase: Phase, seq_ids: Sequence[int]) -> None:
    """Measure how long these sequences still hold blocks.

    They were aborted just now, because the peer cancelled them in `phase`.
    """
    clock, cancelled_s = deps.clock, deps.clock.now()
    histogram = instruments.CANCEL_SECONDS.labels(phase)
    deps.dispatcher.when_freed(seq_ids, lambda: histogram.observe(clock.now() - cancelled_s))
