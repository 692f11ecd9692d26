"""Brings the files of a model from where they are into a folder, and notes what came.

Workers wait for the file `.downloaded`, written last. Repeating a download is cheap: files that are
there are kept, and one that was cut goes on where it was. Each file is read once after it came,
held against the digest that its source knows, and noted in a manifest, from which fingerprints are
made.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from typing import Protocol

from baton.model.load.hub_files import INDEX_FILE, NoWeights, wanted_files
from baton.wire.manifest import MANIFEST_FILE, FileDigest, Manifest, read_manifest

MARKER = ".downloaded"
LOCK = ".downloading"
# Files at a time: what is under way when the process ends is fetched again, or goes on.
_NUM_FILES = 4
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """A file as its source describes it; `num_bytes` 0 and `sha256` None are not known."""

    name: str
    num_bytes: int
    sha256: str | None = None


class Source(Protocol):
    """Where the files of a model are: a revision of a hub's repository, a folder of a store."""

    @property
    def place(self) -> str:
        """What was asked for, for the marker: the same name, the same files."""

    @property
    def repository(self) -> str:
        """For the manifest: without the revision."""

    def offered(self) -> tuple[str, Mapping[str, OfferedFile]]:
        """Names what the source has now (a commit), and its files by name. Raises its errors."""

    def num_present(self, files: Sequence[OfferedFile], folder: Path) -> int:
        """The bytes of these files that need not come any more. Takes away what is left of others.
        Raises OSError."""

    def fetch(self, file: OfferedFile, folder: Path) -> Path:
        """Bring a file into the folder, under its name, unless it is there. Raises its errors and
        OSError."""


def download(source: Source, folder: Path) -> None:
    """Raises the source's errors, NoWeights and OSError: another one is at it, for one."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _download(source, folder)


def _download(source: Source, folder: Path) -> None:
    marker = folder / MARKER
    has_manifest = read_manifest(folder) is not None
    if has_manifest and marker.is_file() and marker.read_text().strip() == source.place:
        return
    marker.unlink(missing_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    commit, offered = source.offered()
    index = None
    if INDEX_FILE in offered:
        index = source.fetch(offered[INDEX_FILE], folder).read_bytes()
    files = [offered[name] for name in wanted_files(offered, index)]
    _check_names(files)
    _check_room(source, files, folder)

    def fetch(file: OfferedFile) -> FileDigest:
        return _checked(file, source.fetch(file, folder))

    with ThreadPoolExecutor(_NUM_FILES) as pool:
        digests = list(pool.map(fetch, files))
    named = dict(zip((file.name for file in files), digests, strict=True))
    Manifest(source.repository, commit, named).write(folder)
    _remove_other_weights(folder, named)
    marker.write_text(f"{source.place}\n")


def _checked(file: OfferedFile, path: Path) -> FileDigest:
    """The digest of a file that has come. Raises OSError when it is not the source's."""
    with path.open("rb") as content:
        digest = file_digest(content, "sha256").hexdigest()
        # A node that dies keeps the marker only with what it stands for.
        os.fsync(content.fileno())
    num_bytes = path.stat().st_size
    if file.sha256 not in (None, digest) or file.num_bytes not in (0, num_bytes):
        path.unlink()
        raise OSError(f"{file.name} came damaged: its SHA-256 or size is another; try again")
    return FileDigest(num_bytes, digest)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Two that write one file would mix it. The lock ends with the process. Raises OSError."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"another download writes into {folder}; it is tried again") from None
        yield


def _check_names(files: Iterable[OfferedFile]) -> None:
    """An index of weights may name anything. Raises NoWeights for what lies outside the folder."""
    for file in files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts:
            raise NoWeights(f"{file.name} is no name of a file in a folder")


def _check_room(source: Source, files: Sequence[OfferedFile], folder: Path) -> None:
    """Raises OSError when what has not come yet does not fit."""
    num_bytes = sum(file.num_bytes for file in files) - source.num_present(files, folder)
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise OSError(
            f"what has not come yet needs {num_bytes / _GIB:.2f} GiB, and {folder} has"
            f" {free / _GIB:.2f} GiB free: {(num_bytes - free) / _GIB:.2f} GiB are missing"
        )


def _remove_other_weights(folder: Path, wanted: Iterable[str]) -> None:
    """Weights of another revision would be loaded with those of this one."""
    for path in set(folder.glob("*.safetensors")) - {folder / name for name in wanted}:
        path.unlink()
