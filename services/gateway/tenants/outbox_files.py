"""The outbox's files: numbered segments of lines, each line a record or the mark of a settled one.

A line is a checksum and base64; what a crash left torn is skipped. Nothing is ever rewritten: a
segment is removed when all its records are settled.
"""

import base64
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from baton.wire.v1 import quota_pb2

_MARK = b"-"
_OF_PROCESS = "process-"


class OutboxFiles(Protocol):
    """Files that survive a crash. The methods block; they are called in a thread."""

    def segments(self) -> list[int]:
        """The numbers of all segments, oldest first."""

    def read(self, segment: int) -> list[bytes]:
        """All lines of a segment."""

    def append(self, segment: int, lines: list[bytes], *, durable: bool) -> None:
        """Add lines; with `durable` they are on the disk on return. Raises OSError."""

    def remove(self, segment: int) -> None:
        """Remove a segment. Raises OSError."""


class DiskFiles:
    """Segments as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def segments(self) -> list[int]:
        names = (path.stem.removeprefix("usage-") for path in self._folder.glob("usage-*.txt"))
        return sorted(int(name) for name in names if name.isdigit())

    def read(self, segment: int) -> list[bytes]:
        return self._path(segment).read_bytes().splitlines()

    def append(self, segment: int, lines: list[bytes], *, durable: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(segment)
        is_new_file = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            # Begins on a new line, so that a torn one before it harms only itself.
            file.write(b"\n" + b"\n".join(lines) + b"\n")
            file.flush()
            if durable:
                os.fsync(descriptor)
        if is_new_file and durable:
            self._sync_folder()

    def remove(self, segment: int) -> None:
        self._path(segment).unlink(missing_ok=True)

    def take(self, other: "DiskFiles", segment: int) -> None:
        """Move a segment of another folder to the end of those of this one. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        last = max(self.segments(), default=0)
        other._path(segment).rename(self._path(last + 1))

    def _path(self, segment: int) -> Path:
        return self._folder / f"usage-{segment:08d}.txt"

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def folder_of(folder: Path, number: int, num_processes: int) -> Path:
    """The folder of one of the processes of a gateway: `folder` itself where there is only one."""
    return folder if num_processes == 1 else folder / f"{_OF_PROCESS}{number}"


def take_over(folder: Path, num_processes: int) -> None:
    """Give the segments of processes that there are no more to the first one. None may run. Raises
    OSError."""
    own = [folder_of(folder, number + 1, num_processes) for number in range(num_processes)]
    files = DiskFiles(own[0])
    for other in (folder, *folder.glob(f"{_OF_PROCESS}*")):
        for segment in DiskFiles(other).segments() if other not in own else []:
            files.take(DiskFiles(other), segment)


def record_line(record: quota_pb2.UsageRecord) -> bytes:
    return _sealed(record.SerializeToString())


def mark_line(request_id: str) -> bytes:
    """The line that says that the record of this request, earlier in its segment, is settled."""
    return _MARK + _sealed(request_id.encode())


def waiting_records(lines: Iterable[bytes]) -> list[quota_pb2.UsageRecord]:
    """The records of a segment that no mark of it calls settled."""
    records, settled = [], set()
    for line in lines:
        data = _opened(line.removeprefix(_MARK))
        if data is None:
            continue
        if line.startswith(_MARK):
            settled.add(data.decode())
        elif (record := _record(data)) is not None:
            records.append(record)
    return [record for record in records if record.request_id not in settled]


def _sealed(data: bytes) -> bytes:
    return b"%08x %b" % (zlib.crc32(data), base64.b64encode(data))


def _opened(line: bytes) -> bytes | None:
    checksum, _, encoded = line.partition(b" ")
    try:
        data = base64.b64decode(encoded, validate=True)
        return data if int(checksum, 16) == zlib.crc32(data) else None
    except ValueError:
        return None


def _record(data: bytes) -> quota_pb2.UsageRecord | None:
    try:
        return quota_pb2.UsageRecord.FromString(data)
    except DecodeError:
        return None
