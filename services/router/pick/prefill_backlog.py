"""The line forms in the router when prefill is what lacks, not only when batch slots do.

Workers compute prompts in the order of their arrival, whosever they are. So a fleet whose workers
all have prompts for BACKLOG_S before them gets no more: the next one waits in the router's line,
which is fair and bounded. No worker runs dry meanwhile, because it reports many times in that time.
A tenant that must leave room for quiet ones (`queue/fair_line.py`) stops earlier: so theirs find
room, and a short line before them in the worker.
"""

from services.router.fleet.columns import Figure
from services.router.fleet.fleet import Fleet
from services.router.pick.shortlist import MAX_PLAIN

BACKLOG_S = 1.0
# The same for requests of tenants with a large share, while there are tenants with a small one.
SHARED_BACKLOG_S = 0.25


def least_tokens(fleet: Fleet, model_fp: str, role: int) -> float:
    """The prompt tokens before the worker that has the fewest, of those that may be picked."""
    pool = fleet.of_model(model_fp, role)
    if len(pool) > MAX_PLAIN and (columns := fleet.columns(model_fp, role)) is not None:
        tokens = columns[Figure.QUEUED_TOKENS][columns.is_in()]
        return float(tokens.min()) if len(tokens) else 0.0
    queued = (fleet.num_queued_prefill_tokens(each) for each in pool if fleet.is_fit(each))
    return min(queued, default=0)
