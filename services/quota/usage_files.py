"""The archive's folder: daily files of usage lines, to which the archiver appends durably.

Memory is bounded whatever the size of the files: of the requests in them only the last ones are
remembered, as digests, and after a start the ends of the last files are read again. A request that
is written twice all the same is counted once by readers (`baton.wire.usage_log.final_lines`).
"""

import os
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import msgspec

from baton.wire import usage_log
from baton.wire.usage_log import UsageLine

REJECTED_FILE = "rejected-usage.jsonl"

# More than what a crash between fsync and delete, or a failover of Redis, brings again.
_MAX_REMEMBERED = 65_536
_FILES_REMEMBERED = 2
_BYTES_REMEMBERED = 16 * 1024 * 1024
_DIGEST_BYTES = 16
_CHUNK_BYTES = 64 * 1024


class SeenRequests:
    """The last requests of which there was a line, the latest ones only."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def admit(self, line: UsageLine) -> bool:
        """Remember a line; False if it changes nothing: its request is final, or it repeats."""
        final = _digest(line, provisional=False)
        is_known = final in self._digests
        digest = final
        if line.provisional:
            digest = _digest(line, provisional=True)
            is_known = is_known or digest in self._digests
        self._digests[digest] = None
        self._digests.move_to_end(digest)
        if len(self._digests) > self._max_requests:
            self._digests.popitem(last=False)
        return not is_known


class UsageFiles:
    """Appends lines to the daily files, and leaves out requests that it has seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = SeenRequests(_MAX_REMEMBERED)
        folder.mkdir(parents=True, exist_ok=True)
        for path in usage_log.files(folder)[-_FILES_REMEMBERED:]:
            _cut_torn_line(path)
            for line in usage_log.read_file(path, _BYTES_REMEMBERED):
                self._seen.admit(line)

    def append(self, lines: Iterable[UsageLine]) -> int:
        """Append the new lines, and fsync; returns their number. Blocks on the disk."""
        texts: dict[str, list[bytes]] = {}
        num_new = 0
        for line in lines:
            if not self._seen.admit(line):
                continue
            texts.setdefault(line.file_name, []).append(usage_log.encode(line))
            num_new += 1
        for name, parts in texts.items():
            self._write(name, b"".join(parts))
        return num_new

    def reject(self, entries: Iterable[dict[bytes, bytes]]) -> None:
        """Append entries that cannot be read to REJECTED_FILE, for an operator to look at."""
        lines = [
            msgspec.json.encode({k.decode("latin-1"): v.hex() for k, v in entry.items()}) + b"\n"
            for entry in entries
        ]
        if lines:
            self._write(REJECTED_FILE, b"".join(lines))

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        is_new_file = not path.exists()
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new_file:
            _sync_folder(self._folder)


def _digest(line: UsageLine, provisional: bool) -> bytes:
    text = f"{line.tenant}\n{line.request_id}\n{provisional:d}"
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _cut_torn_line(path: Path) -> None:
    """Cut off a line that a crash left half written, without its newline."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end:
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end != size:
            file.truncate(end)
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
