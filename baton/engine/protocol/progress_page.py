"""One page of shared memory in which the core notes, before each step, which one it begins.

The front reads it while the core runs, hangs or is dead (decisions 0022 and 0032). Written under a
sequence lock: `version` is odd while the page changes. Knows no sequences, only request ids.
"""

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 64 * 1024
_MAX_READS = 100
# version, step, commands taken, expected time of the step (0 = unknown), is busy, bytes of the
# request ids that follow
_HEADER = struct.Struct("<QQQdII")
_VERSION = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class CoreProgress:
    """The step that the core is in, readable even while it hangs.

    Health is that `step` moves while busy, and that commands are taken within a step.
    """

    step: int
    is_busy: bool
    request_ids: tuple[str, ...]  # of the step that runs now
    num_commands: int = 0  # taken in so far
    # How long the step, or the last one, should take; None when nothing like it ran before.
    expected_s: float | None = None


class ProgressPage:
    """One writer (the core), any number of readers. Request ids beyond the page are left out."""

    def __init__(self, page: mmap.mmap | bytearray) -> None:
        self._page = page
        self._version = 0
        self._step = 0
        self._num_commands = 0
        self._expected_s = 0.0

    def count_commands(self, count: int) -> None:
        """`count` more commands were taken in; shown by the next write."""
        self._num_commands += count

    def begin_step(
        self, step: int, request_ids: Iterable[str], expected_s: float | None = None
    ) -> None:
        """Step `step` of these requests is about to run, and should take `expected_s`, if known."""
        self._step = step
        self._expected_s = expected_s or 0.0
        self._write(True, "\n".join(request_ids).encode())

    def end_work(self) -> None:
        """Nothing runs: the core is about to wait for commands."""
        self._write(False, b"")

    def read(self) -> CoreProgress:
        """A consistent copy, or the page as it is when its writer died in the middle of writing."""
        for _ in range(_MAX_READS):
            header = _HEADER.unpack_from(self._page)
            version, step, num_commands, expected_s, is_busy, num_bytes = header
            ids = self._page[_HEADER.size : _HEADER.size + min(num_bytes, PAGE_BYTES)]
            if version % 2 == 0 and _VERSION.unpack_from(self._page)[0] == version:
                break
        request_ids = tuple(ids.decode(errors="replace").split("\n")) if ids else ()
        return CoreProgress(step, bool(is_busy), request_ids, num_commands, expected_s or None)

    def _write(self, is_busy: bool, ids: bytes) -> None:
        if len(ids) > PAGE_BYTES - _HEADER.size:
            ids = ids[: PAGE_BYTES - _HEADER.size].rpartition(b"\n")[0]
        self._version += 2
        _VERSION.pack_into(self._page, 0, self._version - 1)
        self._page[_HEADER.size : _HEADER.size + len(ids)] = ids
        figures = (self._step, self._num_commands, self._expected_s, is_busy, len(ids))
        _HEADER.pack_into(self._page, 0, self._version - 1, *figures)
        _VERSION.pack_into(self._page, 0, self._version)


def read_left_page(path: Path) -> tuple[str, ...]:
    """The requests of the step that a process was in which left this page behind when it died.

    Empty when there is no whole page, or nothing ran.
    """
    try:
        page = bytearray(path.read_bytes())
    except OSError:
        return ()
    return ProgressPage(page).read().request_ids if len(page) == PAGE_BYTES else ()
