"""Notes the files of a model's folder that nothing downloaded in a manifest, as a download does.

Without one each pod reads all weights at its start, to know what they are. It is for a claim, a
folder of a node, and the folder from which an image is made.
"""

from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path

from baton.wire.fingerprint import fingerprint_of, fingerprinted_files
from baton.wire.manifest import MANIFEST_FILE, FileDigest, Manifest
from baton.worker.download.fetch import MARKER, alone_in

# Files at a time; each is a core's work, and a file server's.
_NUM_FILES = 4


def note_files(folder: Path) -> str:
    """Read all files that a fingerprint is made of, and write their manifest; returns the
    fingerprint. One that is there is replaced.

    Raises FileNotFoundError when the folder has no model, and OSError: a file that changes
    meanwhile, a folder of a download, for one.
    """
    fingerprinted_files(folder)
    if (folder / MARKER).exists() and (folder / MANIFEST_FILE).exists():
        raise OSError(f"a download has noted its files; of a copy of it remove {MARKER} first")
    with alone_in(folder):
        # A worker that starts meanwhile must not take the old digests for those of changed files.
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        names = fingerprinted_files(folder)
        with ThreadPoolExecutor(_NUM_FILES) as pool:
            digests = list(pool.map(lambda name: _read(folder / name), names))
        files = dict(zip(names, digests, strict=True))
        fingerprint = fingerprint_of({name: file.sha256 for name, file in files.items()})
        Manifest(folder.resolve().name, fingerprint, files).write(folder)
    return fingerprint


def _read(path: Path) -> FileDigest:
    """Raises OSError when the file changes meanwhile."""
    before = path.stat()
    with path.open("rb") as content:
        digest = file_digest(content, "sha256").hexdigest()
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise OSError(f"{path.name} changed while it was read; try again")
    return FileDigest(after.st_size, digest)
