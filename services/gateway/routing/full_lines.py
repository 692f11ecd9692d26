"""The lines of routers that lately refused a request: what would meet the same line is refused too.

A router tells that its line is too long only when a prompt is tokenized and its tokens are
reserved. Under overload most requests would have that work for nothing, and it would take the time
of those that are served. So what a router refused is refused here for a moment, before any of
that. In this time the line only becomes shorter, by half of its length at most, so that no worker
runs dry. Those that have more time for their first token, or a smaller prompt, ask the routers.
When the moment is over one request asks the router, and those that come beside it are refused.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from baton.system.clock import Clock
from baton.wire.failures import Overloaded

MAX_LINES = 10_000
# A refusal holds for this share of the wait that it told, and for so long at most.
HELD_SHARE = 0.5
MAX_HELD_S = 1.0
# A router's answer takes less: others are refused so long after one has begun to ask.
ASKING_S = 0.1
# The least wait that a router tells. A line as short as that may be empty in a moment.
SHORT_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a request in its router's line: the line of its tenant, the time that it has for
    its first token, and the size of its prompt as it was sent."""

    model_fp: str
    tenant: str
    priority: int
    allowance_s: float
    num_bytes: int

    @property
    def line(self) -> tuple[str, str, int]:
        return self.model_fp, self.tenant, self.priority


@dataclass(frozen=True, slots=True)
class _Refused:
    """The refusal of a place: until when it holds, and when the line has passed."""

    place: Place
    until_s: float
    passed_s: float


class FullLines:
    """The lines that one gateway knows to be too long; the oldest are forgotten."""

    def __init__(self, clock: Clock) -> None:
        # False until a first refusal is noted: no line is known to be too long.
        self.holds_any = False
        self._clock = clock
        self._refused: OrderedDict[tuple[str, str, int], _Refused] = OrderedDict()

    def check(self, place: Place) -> None:
        """Raise Overloaded for a request that its router would refuse."""
        refused = self._refused.get(place.line)
        now_s = self._clock.now()
        if refused is None or now_s >= refused.passed_s:
            return
        has_more_time = place.allowance_s > refused.place.allowance_s
        if has_more_time or place.num_bytes < refused.place.num_bytes:
            return
        if now_s >= refused.until_s:
            self._refused[place.line] = replace(refused, until_s=now_s + ASKING_S)
            return
        wait_s = refused.passed_s - now_s
        message = f"the line is {wait_s:.3g} s long, too long for a request of a moment ago"
        raise Overloaded(message, retry_after_s=max(wait_s, SHORT_WAIT_S))

    def note(self, place: Place, refusal: Overloaded) -> None:
        """Note that a router refused a request of which no attempt was made."""
        now_s, wait_s = self._clock.now(), refusal.retry_after_s
        if wait_s <= SHORT_WAIT_S:
            return
        held_s = min(HELD_SHARE * wait_s, MAX_HELD_S)
        self.holds_any = True
        self._refused[place.line] = _Refused(place, now_s + held_s, now_s + wait_s)
        self._refused.move_to_end(place.line)
        if len(self._refused) > MAX_LINES:
            self._refused.popitem(last=False)
