"""The manifest of a model's folder: size and SHA-256 of each file, so that nobody has to read the
weights to know what they are.

The download writes it after it has read every byte, and `--manifest` does so for a folder that
nothing downloaded (`baton/worker/download/noted.py`). It counts for a file as long as the size
agrees; a person that changes weights in place and keeps their size removes it, or writes it again.
"""

from pathlib import Path

import msgspec

MANIFEST_FILE = "baton-manifest.json"


class FileDigest(msgspec.Struct, frozen=True):
    """A file's size and its SHA-256 in hex."""

    num_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """Where a model's files came from, and what they are, by their path in the folder."""

    # Of a folder that nothing downloaded: its name.
    repository: str
    # The commit that the wanted revision stood for; of such a folder its fingerprint.
    revision: str
    files: dict[str, FileDigest]

    def write(self, folder: Path) -> None:
        """Write it at once or not at all. Raises OSError."""
        fresh = folder / f".{MANIFEST_FILE}.tmp"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
        fresh.replace(folder / MANIFEST_FILE)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is not one that can be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
