"""How far the loading of a model is: lines in a worker's log, which `baton up` shows.

A line is one JSON object on standard error, as those of the structured logs beside it.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

EVENT = "loading_stage"
# No more lines of one stage than that.
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class LoadStage:
    """A stage, and how many of its parts are done where they are known."""

    name: str
    num_done: int = 0
    num_parts: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.num_done}/{self.num_parts}" if self.num_parts else self.name


Tell = Callable[[LoadStage], None]


def untold(_: LoadStage) -> None:
    """Tell nobody."""


class LoadTeller:
    """Writes the stages of one load."""

    def __init__(self) -> None:
        self._told_s = 0.0
        self._name = ""

    def tell(self, stage: LoadStage) -> None:
        """Write a line, unless one of the same stage was written a moment ago."""
        now_s = time.monotonic()
        if stage.name == self._name and now_s - self._told_s < _EVERY_S:
            return
        self._name, self._told_s = stage.name, now_s
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, str | int] = {
            "time": now,
            "level": "info",
            "event": EVENT,
            "stage": stage.name,
        }
        if stage.num_parts:
            line |= {"done": stage.num_done, "parts": stage.num_parts}
        print(json.dumps(line), file=sys.stderr, flush=True)


def stage_of(line: str) -> LoadStage | None:
    """The stage that a line of a log tells; None for any other line."""
    if EVENT not in line:
        return None
    try:
        told = json.loads(line)
        if told["event"] != EVENT:
            return None
        return LoadStage(str(told["stage"]), int(told.get("done", 0)), int(told.get("parts", 0)))
    except (ValueError, LookupError, TypeError):
        return None
