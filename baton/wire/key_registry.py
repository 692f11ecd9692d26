"""API keys: their form, their digest, their lines in the registry file and their entries in Redis.
Shared because the command line writes the registry that the quota service loads.

A key is random and never stored; its digest is HMAC-SHA256(server_secret, key). The registry is an
append-only file of JSON lines: `create`, `revoke` and `limits`, those of a tenant or an
organisation. The last line about a key or an owner wins. Knows no Redis client: `redis_commands`
returns commands for any client.
"""

import contextlib
import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from baton.wire.key_limits import (
    NAME_RULES,
    WHOLE,
    KeyLimits,
    Name,
    OwnerLimits,
    TenantName,
    limits_key,
    owner_key,
    tenant_root,
)
from baton.wire.plain_errors import plain

KEY_PREFIX = "bt-"
# The beginnings of identities: by a token's claim, by a client certificate's name.
TOKEN_IDENTITY = "jwt:"
CERTIFICATE_IDENTITY = "cert:"
IDENTITIES = (TOKEN_IDENTITY, CERTIFICATE_IDENTITY)
SECRET_BYTES = 32
MAX_PRIORITY = 255
# Below that of every key.
BATCH_PRIORITY = -1
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
TENANTS_KEY = "baton:tenants"
GATEWAYS_KEY = "baton:gateways"
# The digests of all keys that were ever revoked.
REVOKED_KEY = "baton:revoked"
# Its presence says that the registry file was loaded into this Redis, its value whether all that
# was spent of budgets is counted.
LOADED_KEY = "baton:registry"
BUDGETS_KNOWN = b"budgets known"
BUDGETS_RESTORING = b"budgets restoring"

_KEY_BYTES = 32
_IDENTITY_LABEL = b"\0identities"
_MAX_IDENTITY_CHARS = 512
_SHOWN_CHARS = 7
_MAX_LINE_BYTES = 64 * 1024
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Random = Callable[[int], bytes]
Command = tuple[str | int, ...]


class RegistryError(Exception):
    """The registry or the secret file is unusable; the message names file and line."""


class KeyRecord(msgspec.Struct, frozen=True, tag_field="op", tag="create"):
    """A line of the registry that declares a key, by its digest.

    `shown` is the beginning of the key, by which people recognise it.
    """

    key_id: Name
    tenant: TenantName
    digest: Digest
    shown: str
    created_unix_s: int
    limits: KeyLimits = KeyLimits()
    allowed_models: tuple[str, ...] = ()
    # Requests of a larger priority are computed sooner and preempted later.
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0
    # The share of its tenant beside other tenants of the same priority.
    weight: Annotated[float, msgspec.Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    revoked: bool = False


class Revocation(msgspec.Struct, frozen=True, tag_field="op", tag="revoke"):
    """A line of the registry from which on a key is refused."""

    key_id: Name
    revoked_unix_s: int


# What Redis has a copy of, and what a line of the registry may be.
Record = KeyRecord | OwnerLimits
Line = Record | Revocation


@dataclass(frozen=True, slots=True)
class Entries:
    """What a registry says: keys by their ids, revoked ones included, and the limits of tenants and
    organisations by their owners. Both are in order of creation."""

    keys: dict[str, KeyRecord] = field(default_factory=dict)
    limits: dict[str, OwnerLimits] = field(default_factory=dict)

    def __or__(self, later: "Entries") -> "Entries":
        """Both; where they speak of the same key or owner, what `later` says."""
        return Entries(self.keys | later.keys, self.limits | later.limits)

    def records(self) -> list[Record]:
        """All of it, limits of owners first: no key may be used before they count."""
        return [*self.limits.values(), *self.keys.values()]

    def take(self, line: Line) -> None:
        """Take in one more line."""
        if isinstance(line, OwnerLimits):
            self.limits[line.owner] = line
        elif isinstance(line, KeyRecord):
            self.keys[line.key_id] = line
        elif line.key_id in self.keys:
            self.keys[line.key_id] = msgspec.structs.replace(self.keys[line.key_id], revoked=True)


_decode_line: Callable[[bytes], Line] = msgspec.json.Decoder(Line).decode
_decode_record = msgspec.json.Decoder(KeyRecord).decode
_decode_owner = msgspec.json.Decoder(OwnerLimits).decode


def key_digest(server_secret: bytes, api_key: str) -> bytes:
    """The digest that gateways send and the registry stores instead of the key."""
    return hmac.digest(server_secret, api_key.encode(), sha256)


def identity_digest(server_secret: bytes, identity: str) -> bytes:
    """The digest of a name that somebody else vouches for. It is under a secret of its own, so that
    no API key has it."""
    own_secret = hmac.digest(server_secret, _IDENTITY_LABEL, sha256)
    return hmac.digest(own_secret, identity.encode(), sha256)


def new_key(
    server_secret: bytes,
    tenant: str,
    limits: KeyLimits,
    *,
    now_unix_s: float,
    random: Random = os.urandom,
    identity: str = "",
    allowed_models: tuple[str, ...] = (),
    priority: int = 0,
    weight: float = 1.0,
) -> tuple[str, KeyRecord]:
    """Make a key, shown once to its owner, and its record; or the record alone of an `identity`,
    which needs no key: "jwt:NAME".

    Raises RegistryError on a bad tenant name, model name, identity, priority or weight.
    """
    api_key = KEY_PREFIX + urlsafe_b64encode(random(_KEY_BYTES)).rstrip(b"=").decode()
    digest = key_digest(server_secret, api_key)
    if identity:
        _check_identity(identity)
        api_key, digest = "", identity_digest(server_secret, identity)
    record = KeyRecord(
        key_id=f"key_{random(8).hex()}",
        tenant=tenant,
        digest=digest.hex(),
        shown=identity or api_key[:_SHOWN_CHARS],
        created_unix_s=int(now_unix_s),
        limits=limits,
        allowed_models=allowed_models,
        priority=priority,
        weight=weight,
    )
    try:
        # msgspec checks constraints on decoding: an unreadable record must not be written.
        return api_key, _decode_record(msgspec.json.encode(record))
    except msgspec.ValidationError as error:
        raise RegistryError(plain(str(error), NAME_RULES)) from error


def _check_identity(identity: str) -> None:
    if not any(identity.startswith(kind) and identity != kind for kind in IDENTITIES):
        raise RegistryError(f"identity {identity!r}: say {' or '.join(IDENTITIES)} and a name")
    if len(identity) > _MAX_IDENTITY_CHARS:
        raise RegistryError(f"identity: longer than {_MAX_IDENTITY_CHARS} characters")


def owner_limits(level: str, name: str, limits: KeyLimits) -> OwnerLimits:
    """Make the line that sets the limits of a tenant or an organisation. Raises RegistryError on a
    bad name or level."""
    line = {"op": "limits", "level": level, "name": name, "limits": limits}
    try:
        return _decode_owner(msgspec.json.encode(line))
    except msgspec.ValidationError as error:
        raise RegistryError(plain(str(error), NAME_RULES)) from error


def encode(entry: Line) -> bytes:
    """One line of the registry."""
    return msgspec.json.encode(entry) + b"\n"


def append(path: Path, entry: Line) -> None:
    """Append one line, durably. A new file is readable by its owner only."""
    line = encode(entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def files(path: Path) -> list[Path]:
    """The files of a registry: `path`, and where that is `registry.jsonl`, those of further Secrets
    beside it, `registry-1.jsonl` and so on."""
    found = [path]
    while (part := path.with_stem(f"{path.stem}-{len(found)}")).exists():
        found.append(part)
    return found


def read(path: Path) -> Entries:
    """Read a registry, all its files in order. Raises RegistryError.

    A missing file is empty. A last line without its newline is still being written and is left out.
    """
    data = b"".join(_whole_lines(part) for part in files(path))
    return parse(data, str(path))


def _whole_lines(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RegistryError(f"{path}: {error.strerror}") from error
    return data[: data.rfind(b"\n") + 1]


def parse(data: bytes, origin: str) -> Entries:
    """Read the registry that `data` is; `origin` names it in errors. Raises RegistryError."""
    entries = Entries()
    complete = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(complete.splitlines(), start=1):
        if line.strip():
            entries.take(_decoded(f"{origin}:{number}", line))
    return entries


def compacted(data: bytes) -> bytes:
    """The same part of a registry without the lines that later ones replace. Raises
    RegistryError."""
    latest: dict[str, Line] = {}
    for number, text in enumerate(data.splitlines(), start=1):
        line = _decoded(f"registry:{number}", text)
        name = line.owner if isinstance(line, OwnerLimits) else line.key_id
        known = latest.get(name)
        if isinstance(line, Revocation) and isinstance(known, KeyRecord):
            line = msgspec.structs.replace(known, revoked=True)
        latest[name] = line
    return b"".join(map(encode, latest.values()))


def _decoded(where: str, line: bytes) -> Line:
    if len(line) > _MAX_LINE_BYTES:
        raise RegistryError(f"{where}: longer than {_MAX_LINE_BYTES} bytes")
    try:
        return _decode_line(line)
    except msgspec.MsgspecError as error:
        raise RegistryError(f"{where}: {plain(str(error), NAME_RULES)}") from error


def principal_key(digest: bytes) -> str:
    """The Redis key of the record of the API key with this digest."""
    return f"baton:key:{digest.hex()}"


def redis_commands(record: Record, *, is_restoring: bool = False) -> list[Command]:
    """The commands that make Redis agree with `record`; repeating them changes nothing.

    With `is_restoring`, not all that was spent of budgets is known yet: hard ones are refused.
    """
    if isinstance(record, OwnerLimits):
        return _owner_commands(record, is_restoring)
    declare: list[Command] = [
        ("SADD", TENANTS_KEY, record.tenant),
        (
            "HSET", limits_key(tenant_root(record.tenant), record.key_id),
            *record.limits.redis_fields(is_restoring=is_restoring),
            "revoked", int(record.revoked),
        ),
    ]  # fmt: skip
    name = principal_key(bytes.fromhex(record.digest))
    # Limits stay after a revocation: open leases of the key are settled against them.
    if record.revoked:
        return [("SADD", REVOKED_KEY, record.digest), ("DEL", name), *declare]
    return [*declare, ("SET", name, msgspec.json.encode(record).decode())]


def _owner_commands(record: OwnerLimits, is_restoring: bool) -> list[Command]:
    name, limits = owner_key(record.owner), limits_key(record.root, WHOLE)
    if record.limits == KeyLimits():
        return [("DEL", limits), ("DEL", name)]
    return [
        ("HSET", limits, *record.limits.redis_fields(is_restoring=is_restoring)),
        ("SET", name, msgspec.json.encode(record).decode()),
    ]


def decode_record(data: bytes) -> KeyRecord:
    """Decode a record that `redis_commands` stored. Raises RegistryError."""
    try:
        return _decode_record(data)
    except msgspec.MsgspecError as error:
        raise RegistryError(f"stored key record: {plain(str(error), NAME_RULES)}") from error


def decode_owner(data: bytes) -> OwnerLimits:
    """Decode the limits of an owner that `redis_commands` stored. Raises RegistryError."""
    try:
        return _decode_owner(data)
    except msgspec.MsgspecError as error:
        raise RegistryError(f"stored limits: {plain(str(error), NAME_RULES)}") from error


def read_secret(path: Path) -> bytes:
    """Read the server secret that new keys get. Raises RegistryError."""
    return read_secrets(path)[0]


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Read the server secret, and behind it older ones whose keys are still good.

    One a line, in hexadecimal, of SECRET_BYTES at least. Raises RegistryError.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise RegistryError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise RegistryError(f"{path}: not hexadecimal") from None
    return parse_secrets(text, str(path))


def parse_secrets(text: str, origin: str) -> tuple[bytes, ...]:
    """Read server secrets from text; `origin` names it in errors. Raises RegistryError."""
    try:
        secrets = tuple(bytes.fromhex(line) for line in text.split())
    except ValueError:
        raise RegistryError(f"{origin}: not hexadecimal") from None
    if not secrets or min(map(len, secrets)) < SECRET_BYTES:
        raise RegistryError(f"{origin}: shorter than {SECRET_BYTES} bytes")
    return secrets


def ensure_secret(path: Path, random: Random = os.urandom) -> bytes:
    """Read the server secret; without a file, make one that only its owner can read."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(random(SECRET_BYTES).hex() + "\n")
        # Linking fails when another process was first: all of them read one complete secret.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return read_secret(path)


def live_keys(records: Iterable[KeyRecord]) -> list[KeyRecord]:
    """The keys that are not revoked."""
    return [record for record in records if not record.revoked]
