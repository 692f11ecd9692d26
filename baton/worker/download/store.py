"""A folder of a store of objects: S3 and what speaks its protocol, Google's, Azure's.

The store's address, region and credentials are those of its own programs (AWS_ENDPOINT_URL,
AWS_REGION, AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE; GOOGLE_APPLICATION_CREDENTIALS;
AZURE_STORAGE_ACCOUNT_NAME), or the machine's account, as obstore finds them.
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from baton.worker.download.fetch import OfferedFile

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig

SCHEMES = ("s3", "gs", "az")
# Not found and denied come as errors of Python's own.
ERRORS = (exceptions.BaseError, ValueError)
# What is asked for at once: it bounds memory, and what is asked for again when a connection breaks.
PART_BYTES = 32 * 2**20
# A slow line needs longer for a part than the library's 30 s for a whole request.
_TIMEOUT, _READ_TIMEOUT = "10m", "60s"


class StoreSource:
    """One folder, `s3://bucket/path`. Raises ValueError for another kind of address."""

    def __init__(self, url: str) -> None:
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            raise ValueError(f"{scheme}:// is none of {', '.join(f'{s}://' for s in SCHEMES)}")
        self.repository = self.place = url.rstrip("/")
        # Who names such an endpoint means it.
        is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        options: ClientConfig = {
            "timeout": _TIMEOUT,
            "read_timeout": _READ_TIMEOUT,
            "allow_http": is_plain,
        }
        self._store = from_url(self.place, client_options=options)
        # By name: what the store compares, and what says here that an object is the same one.
        self._tags: dict[str, str | None] = {}
        self._versions: dict[str, str] = {}

    def offered(self) -> tuple[str, Mapping[str, OfferedFile]]:
        """A digest of the names, sizes and tags, and the files. Raises ERRORS and OSError."""
        found = [each for part in obstore.list(self._store) for each in part]
        self._tags = {each["path"]: each["e_tag"] for each in found}
        self._versions = {
            each["path"]: _digest(f"{each['e_tag']} {each['size']} {each['last_modified']}")[:16]
            for each in found
        }
        files = {each["path"]: OfferedFile(each["path"], each["size"]) for each in found}
        told = [f"{name} {files[name].num_bytes} {self._versions[name]}" for name in sorted(files)]
        return _digest("\n".join(told)), files

    def num_present(self, files: Sequence[OfferedFile], folder: Path) -> int:
        """Whole files, and the first parts of others; of replaced objects everything goes."""
        num_bytes = 0
        for file in files:
            path, part, version = self._paths(file, folder)
            for other in path.parent.glob(f".{path.name}.*.part"):
                if other != part:
                    other.unlink()
            if version.is_file() and version.read_text() != self._versions[file.name]:
                path.unlink(missing_ok=True)
                version.unlink()
            if path.is_file() and version.is_file():
                num_bytes += file.num_bytes
            elif part.is_file():
                num_bytes += part.stat().st_size
        return num_bytes

    def fetch(self, file: OfferedFile, folder: Path) -> Path:
        """Go on behind what has come of this very object. Raises ERRORS and OSError."""
        path, part, version = self._paths(file, folder)
        known = self._versions[file.name]
        if path.is_file() and version.is_file() and version.read_text() == known:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as content:
            while (start := content.tell()) < file.num_bytes:
                end = min(start + PART_BYTES, file.num_bytes)
                content.write(self._content(file.name, start, end))
        part.rename(path)
        version.write_text(known)
        return path

    def _paths(self, file: OfferedFile, folder: Path) -> tuple[Path, Path, Path]:
        """Where the file is when it is whole, what has come until then, and its version."""
        path = folder / file.name
        part = path.with_name(f".{path.name}.{self._versions[file.name]}.part")
        return path, part, path.with_name(f".{path.name}.version")

    def _content(self, name: str, start: int, end: int) -> memoryview:
        options: GetOptions = {"range": (start, end)}
        if (tag := self._tags[name]) is not None:
            options["if_match"] = tag
        came = memoryview(obstore.get(self._store, name, options=options).bytes())
        if len(came) != end - start:
            raise OSError(f"{name}: {len(came)} bytes came of {end - start}; try again")
        return came


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
