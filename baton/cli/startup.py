"""How far a starting stack is: one line, rewritten on a terminal, else printed when it changes."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from baton.system.load_progress import LoadStage, stage_of

# Without a terminal a line that stays the same is repeated after this time: a log shows life.
_REPEAT_S = 60.0
_FIRST_AFTER_S = 2.0
_MAX_TAIL_BYTES = 64 * 1024
_CLEAR_LINE = "\r\x1b[K"
_COUNTS = re.compile(r" \d+/\d+")


class LoadLogs:
    """The logs of the workers, from now on: the last stage that each has told."""

    def __init__(self, folder: Path, workers: Iterable[str]) -> None:
        self._paths = {name: folder / f"{name}.log" for name in workers}
        self._sizes = {name: _size(path) for name, path in self._paths.items()}

    def waiting_for(self, reason: str) -> str:
        """The stages of the workers that `reason` names; the reason itself when it names none."""
        waited = [name for name in self._paths if name in reason]
        if not waited and "router" in reason:
            waited = list(self._paths)
        stages: dict[str, list[str]] = {}
        for name in waited:
            stages.setdefault(str(self._stage(name) or "starting"), []).append(name)
        told = [f"{', '.join(names)}: {stage}" for stage, names in stages.items()]
        return "; ".join(told) or reason

    def _stage(self, name: str) -> LoadStage | None:
        path, start = self._paths[name], self._sizes[name]
        size = _size(path)
        # A log that became too long was begun anew.
        start = max(start if size >= start else 0, size - _MAX_TAIL_BYTES)
        try:
            with path.open("rb") as file:
                file.seek(start)
                lines = file.read(_MAX_TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return None
        return next(filter(None, map(stage_of, reversed(lines))), None)


class StartLine:
    """Shows one line of progress on `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._shown = ""
        self._shown_s = 0.0

    def show(self, text: str, elapsed_s: float) -> None:
        line = f"  {elapsed_s:4.0f} s  {text}"
        if self._is_terminal:
            width = shutil.get_terminal_size().columns
            self._out.write(_CLEAR_LINE + line[: width - 1])
        elif self._is_news(text, elapsed_s):
            self._out.write(f"{line}\n")
            self._shown, self._shown_s = _without_counts(text), elapsed_s
        self._out.flush()

    def end(self) -> None:
        """Make room for other lines."""
        if self._is_terminal:
            self._out.write(_CLEAR_LINE)
            self._out.flush()

    def _is_news(self, text: str, elapsed_s: float) -> bool:
        if elapsed_s < _FIRST_AFTER_S:
            return False
        is_late = elapsed_s - self._shown_s >= _REPEAT_S
        return is_late or _without_counts(text) != self._shown


def _without_counts(text: str) -> str:
    return _COUNTS.sub("", text)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
