"""The requests whose traces are kept although they were not sampled: failed, slow, or migrated.

Of such a request there is one span, the gateway's own, with all that the gateway knows at its end
(decision 0085). In an outage every request fails: no more than MOST_PER_S are kept then.
"""

from baton.runtime import instruments
from baton.system.clock import Clock

MOST_PER_S = 20
# What has not been kept meanwhile may be kept at once.
_MOST_AT_ONCE = 100
_FIRST_FAILURE = 500


class KeptTraces:
    """Says why to keep a trace. `slow_s`: a first token, or an answer without one, that takes
    longer is slow; 0 = none is."""

    def __init__(self, clock: Clock, slow_s: float) -> None:
        self._clock = clock
        self._slow_s = slow_s
        self._room = float(_MOST_AT_ONCE)
        self._filled_s = clock.now()

    def reason(self, *, status: int, has_moved: bool, first_token_s: float) -> str:
        """The reason for which to keep the trace that ends now: failed, moved, slow; else empty."""
        if status >= _FIRST_FAILURE:
            reason = "failed"
        elif has_moved:
            reason = "moved"
        elif 0 < self._slow_s < first_token_s:
            reason = "slow"
        else:
            return ""
        return reason if self._has_room() else ""

    def _has_room(self) -> bool:
        now_s = self._clock.now()
        self._room = min(self._room + (now_s - self._filled_s) * MOST_PER_S, _MOST_AT_ONCE)
        self._filled_s = now_s
        if self._room < 1:
            instruments.SPANS_DROPPED.labels("not_kept").inc()
            return False
        self._room -= 1
        return True
