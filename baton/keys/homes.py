"""The durable homes of keys and limits: a file, or Secrets of Kubernetes. They are the truth; Redis
has a copy.

Both are a log of lines (baton/wire/key_registry.py). A change is decided on what is there at that
moment, and nobody else's change is lost: the file is locked meanwhile, and a Secret is replaced
only if it is still what was read; else the change is decided again.

A Secret holds a megabyte, some 3,000 keys. Further lines go into the next one: `name-1`, `name-2`.
The one before is compacted, and if it is full all the same marked so first: then a writer that
has not seen the next one cannot append to it. Blocks; knows no Redis.
"""

import base64
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from baton.keys.secrets import Conflict, Forbidden, Secrets
from baton.wire import key_registry
from baton.wire.key_registry import Entries, Line, RegistryError

FILE = "registry.jsonl"
# Kubernetes takes Secrets of 1 MiB, with their metadata.
MAX_BYTES = 1_000_000
MAX_SECRETS = 16
_MAX_TRIES = 20
_FULL = "baton/full"

# The lines to append, by what is there. May raise.
Decide = Callable[[Entries], Sequence[Line]]


class RegistryHome(Protocol):
    """A registry of keys and limits. Each method raises RegistryError."""

    def read(self) -> Entries:
        """All keys, revoked ones included, and the limits of tenants and organisations."""

    def change(self, decide: Decide) -> None:
        """Append the lines that `decide` makes of what is there, durably."""


@dataclass(frozen=True)
class FileHome:
    """A registry in a file."""

    path: Path

    def read(self) -> Entries:
        return key_registry.read(self.path)

    def change(self, decide: Decide) -> None:
        try:
            with self._locked() as descriptor:
                _cut_torn_line(self.path, descriptor)
                for line in decide(self.read()):
                    key_registry.append(self.path, line)
        except OSError as error:
            raise RegistryError(f"{self.path}: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _cut_torn_line(path: Path, descriptor: int) -> None:
    """Cut off a line that a crash left half written: the next one would be joined to it."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.ftruncate(descriptor, whole)


@dataclass(frozen=True)
class SecretHome:
    """A registry in the Secrets `name`, `name-1`, ..."""

    secrets: Secrets
    name: str

    def read(self) -> Entries:
        return self._entries(self._parts())

    def change(self, decide: Decide) -> None:
        for _ in range(_MAX_TRIES):
            parts = self._parts()
            added = b"".join(key_registry.encode(line) for line in decide(self._entries(parts)))
            try:
                if added:
                    self._append(parts, added)
                return
            except Conflict:
                continue
        raise RegistryError(f"the Secret {self.name} changes all the time")

    def _parts(self) -> list[Any]:
        """The Secrets in use: after one that is full comes the next."""
        parts: list[Any] = []
        while not parts or _is_full(parts[-1]):
            secret = self._next(len(parts))
            if secret is None:
                break
            parts.append(secret)
        return parts

    def _entries(self, parts: Sequence[Any]) -> Entries:
        return key_registry.parse(b"".join(map(_data, parts)), self.name)

    def _append(self, parts: Sequence[Any], added: bytes) -> None:
        if parts and not _is_full(parts[-1]):
            last, data = parts[-1], _data(parts[-1])
            for kept in (data, key_registry.compacted(data)):
                if len(kept) + len(added) <= MAX_BYTES:
                    self.secrets.put(last | {"data": _encoded(kept + added)})
                    return
            self._mark_full(last)
        self._begin(len(parts), added)

    def _mark_full(self, secret: Any) -> None:
        metadata = secret["metadata"]
        annotations = (metadata.get("annotations") or {}) | {_FULL: "true"}
        self.secrets.put(secret | {"metadata": metadata | {"annotations": annotations}})

    def _begin(self, number: int, added: bytes) -> None:
        """Write the first lines of the next Secret, which may be there, but empty."""
        name = self._name_of(number)
        if number >= MAX_SECRETS or len(added) > MAX_BYTES:
            raise RegistryError(f"the registry is full: {number} Secrets of {self.name}")
        fresh = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        secret = self._next(number) or fresh
        if _data(secret):
            raise Conflict  # another writer has begun it
        self.secrets.put(secret | {"data": _encoded(added)})

    def _next(self, number: int) -> Any:
        """A Secret; None if there is none. An account may know fewer names than MAX_SECRETS."""
        try:
            return self.secrets.get(self._name_of(number))
        except Forbidden:
            if number:
                return None
            raise

    def _name_of(self, number: int) -> str:
        return f"{self.name}-{number}" if number else self.name


def _is_full(secret: Any) -> bool:
    return _FULL in (secret["metadata"].get("annotations") or {})


def _data(secret: Any) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(FILE, ""))


def _encoded(data: bytes) -> dict[str, str]:
    return {FILE: base64.b64encode(data).decode()}
