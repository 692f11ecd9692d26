"""What a page saw of a fleet in the last minutes: readings, and the points of its charts.

All readings of the last minute are kept, of those before only one in several seconds.
"""

import time
from collections import deque

from baton.page.fleet_view import FleetView, Reading, fleet_view

WINDOWS_S = (10, 60, 300)
_CLOSE_S = 60.0
_SPARSE_EVERY_S = 5.0
# A point of a chart looks back so far: in one second there may be no first token.
_POINT_S = 5.0

Point = dict[str, float | None]


class Past:
    """The readings of the longest window."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self._points: deque[Point] = deque()

    def add(self, reading: Reading) -> None:
        """Keep one more, the latest."""
        before = self._before(reading.at_s - _POINT_S, reading)
        self._readings.append(reading)
        self._forget(reading.at_s)
        self._points.append(_point(fleet_view(before, reading)))
        while (self._points[0]["at"] or 0) < time.time() - max(WINDOWS_S):
            self._points.popleft()

    def points(self, window_s: float) -> list[Point]:
        """The points of the last seconds."""
        since_unix_s = time.time() - window_s
        return [point for point in self._points if (point["at"] or 0) >= since_unix_s]

    def between(self, window_s: float) -> tuple[Reading, Reading]:
        """The first and the last reading of the window; rates need two."""
        if not self._readings:
            nothing = Reading(time.monotonic(), {}, {})
            return nothing, nothing
        after = self._readings[-1]
        before = self._before(after.at_s - window_s, after)
        if before is after and len(self._readings) > 1:
            before = self._readings[-2]
        return before, after

    def _forget(self, now_s: float) -> None:
        """Drop what is too old, and thin out what is older than a minute."""
        kept: deque[Reading] = deque()
        for reading in self._readings:
            age_s = now_s - reading.at_s
            is_close = age_s <= _CLOSE_S
            if age_s > max(WINDOWS_S) + _SPARSE_EVERY_S:
                continue
            if is_close or not kept or reading.at_s - kept[-1].at_s >= _SPARSE_EVERY_S:
                kept.append(reading)
        self._readings = kept

    def _before(self, at_s: float, default: Reading) -> Reading:
        """The first reading from then on."""
        return next((each for each in self._readings if each.at_s >= at_s), default)


def _point(view: FleetView) -> dict[str, float | None]:
    """What the charts draw of one moment."""
    return {
        "at": time.time(),
        "open": sum(row.num_open for row in view.gateways),
        "queued": view.num_queued,
        "requests": sum(row.requests_per_s for row in view.gateways),
        "failed": sum(row.failed_per_s for row in view.gateways),
        "first_token": view.first_token.p50_s,
        "token_gap": view.token_gap.p50_s,
        "output": sum(row.output_tokens_per_s for row in view.workers),
        "prompt": sum(row.prompt_tokens_per_s for row in view.workers),
    }
