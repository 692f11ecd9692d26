"""How long a cancelled request keeps its blocks: from the peer's word to the core's.

The core applies an abort between two steps, so that this is about one step. A peer of its own frees
what it holds for the same request, and measures that itself.
"""

from collections.abc import Sequence

from baton.worker import instruments
from baton.worker.deps import WorkerDeps


def observe_cancel(deps: WorkerDeps, phase: str, seq_ids: Sequence[int]) -> None:
    """These were aborted just now because the peer cancelled them in `phase`: "grammar" (to be
    tried), "queue", "prefill", "handoff" or "decode"."""
    clock, cancelled_s = deps.clock, deps.clock.now()
    histogram = instruments.CANCEL_SECONDS.labels(phase)
    deps.dispatcher.when_freed(seq_ids, lambda: histogram.observe(clock.now() - cancelled_s))
