"""API keys: their form, their digest, their lines in the registry file and their entries in Redis.
Shared because the command line writes the registry that the quota service loads.

A key is random and never stored; its digest is HMAC-SHA256(server_secret, key). The registry is an
append-only file of JSON lines, `create` and `revoke`; the last line about a key wins. Knows no
Redis client: `redis_commands` returns commands for any client.
"""

import contextlib
import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from baton.wire.v1 import quota_pb2

KEY_PREFIX = "bt-"
SECRET_BYTES = 32
MAX_LIMIT = 10**9
MAX_PRIORITY = 255
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
TENANTS_KEY = "baton:tenants"
GATEWAYS_KEY = "baton:gateways"
# Its presence says that the registry file was loaded into this Redis.
LOADED_KEY = "baton:registry"

_KEY_BYTES = 32
_SHOWN_CHARS = 7
_MAX_LINE_BYTES = 64 * 1024
# A tenant's name is part of Redis hash tags and log lines: no braces, spaces, control characters.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"
Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Limit = Annotated[int, msgspec.Meta(ge=0, le=MAX_LIMIT)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Random = Callable[[int], bytes]
Command = tuple[str | int, ...]

_PERIODS = {
    "": quota_pb2.BUDGET_PERIOD_UNSPECIFIED,
    "day": quota_pb2.BUDGET_PERIOD_DAY,
    "month": quota_pb2.BUDGET_PERIOD_MONTH,
}


class RegistryError(Exception):
    """The registry or the secret file is unusable; the message names file and line."""


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of one key; 0 = unlimited. The budget counts tokens per UTC day or month."""

    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    concurrency: Limit = 0
    budget_tokens: Annotated[int, msgspec.Meta(ge=0, le=10**14)] = 0
    budget_period: Literal["", "day", "month"] = ""
    hard_budget: bool = False

    def __post_init__(self) -> None:
        if bool(self.budget_tokens) != bool(self.budget_period):
            raise ValueError("a budget needs both an amount of tokens and a period")
        if self.hard_budget and not self.budget_tokens:
            raise ValueError("a hard budget needs an amount of tokens and a period")

    def to_wire(self) -> quota_pb2.Limits:
        return quota_pb2.Limits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrency=self.concurrency,
            budget_tokens=self.budget_tokens,
            budget_period=_PERIODS[self.budget_period],
            hard_budget=self.hard_budget,
        )


class KeyRecord(msgspec.Struct, frozen=True, tag_field="op", tag="create"):
    """A line of the registry that declares a key, by its digest.

    `shown` is the beginning of the key, by which people recognise it.
    """

    key_id: Name
    tenant: Name
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


_decode_line = msgspec.json.Decoder(KeyRecord | Revocation).decode
_decode_record = msgspec.json.Decoder(KeyRecord).decode


def key_digest(server_secret: bytes, api_key: str) -> bytes:
    """The digest that gateways send and the registry stores instead of the key."""
    return hmac.digest(server_secret, api_key.encode(), sha256)


def new_key(
    server_secret: bytes,
    tenant: str,
    limits: KeyLimits,
    *,
    now_unix_s: float,
    random: Random = os.urandom,
    allowed_models: tuple[str, ...] = (),
    priority: int = 0,
    weight: float = 1.0,
) -> tuple[str, KeyRecord]:
    """Make a key, shown once to its owner, and its record.

    Raises RegistryError on a bad tenant name, model name, priority or weight.
    """
    api_key = KEY_PREFIX + urlsafe_b64encode(random(_KEY_BYTES)).rstrip(b"=").decode()
    record = KeyRecord(
        key_id=f"key_{random(8).hex()}",
        tenant=tenant,
        digest=key_digest(server_secret, api_key).hex(),
        shown=api_key[:_SHOWN_CHARS],
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
        raise RegistryError(str(error)) from error


def encode(entry: KeyRecord | Revocation) -> bytes:
    """One line of the registry."""
    return msgspec.json.encode(entry) + b"\n"


def append(path: Path, entry: KeyRecord | Revocation) -> None:
    """Append one line, durably. A new file is readable by its owner only."""
    line = encode(entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> dict[str, KeyRecord]:
    """Read all keys by key id, revoked ones included, in order of creation. Raises RegistryError.

    A missing file is empty. A last line without its newline is still being written and is left out.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RegistryError(f"{path}: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, origin: str) -> dict[str, KeyRecord]:
    """Read the registry that `data` is; `origin` names it in errors. Raises RegistryError."""
    records: dict[str, KeyRecord] = {}
    complete = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(complete.splitlines(), start=1):
        if line.strip():
            _apply(records, f"{origin}:{number}", line)
    return records


def _apply(records: dict[str, KeyRecord], where: str, line: bytes) -> None:
    if len(line) > _MAX_LINE_BYTES:
        raise RegistryError(f"{where}: longer than {_MAX_LINE_BYTES} bytes")
    try:
        entry = _decode_line(line)
    except msgspec.MsgspecError as error:
        raise RegistryError(f"{where}: {error}") from error
    if isinstance(entry, KeyRecord):
        records[entry.key_id] = entry
    elif entry.key_id in records:
        records[entry.key_id] = msgspec.structs.replace(records[entry.key_id], revoked=True)


def principal_key(digest: bytes) -> str:
    """The Redis key of the record of the API key with this digest."""
    return f"baton:key:{digest.hex()}"


def tenant_root(tenant: str) -> str:
    """The prefix of every Redis key of a tenant's ledger; one hash slot per tenant."""
    return f"baton:{{{tenant}}}"


def limits_key(tenant: str, key_id: str) -> str:
    """The Redis key at which the ledger's scripts read one API key's limits."""
    return f"{tenant_root(tenant)}:limits:{key_id}"


def redis_commands(record: KeyRecord, *, is_restoring: bool = False) -> list[Command]:
    """The commands that make Redis agree with `record`; repeating them changes nothing.

    With `is_restoring`, not all that was spent of budgets is known yet: hard ones are refused.
    Limits stay after a revocation: open leases of the key are settled against them.
    """
    limits = record.limits
    declare: list[Command] = [
        ("SADD", TENANTS_KEY, record.tenant),
        (
            "HSET", limits_key(record.tenant, record.key_id),
            "rpm", limits.requests_per_minute,
            "tpm", limits.tokens_per_minute,
            "concurrency", limits.concurrency,
            "budget", limits.budget_tokens,
            "period", int(_PERIODS[limits.budget_period]),
            "revoked", int(record.revoked),
            "restoring", int(is_restoring and limits.hard_budget),
        ),
    ]  # fmt: skip
    name = principal_key(bytes.fromhex(record.digest))
    if record.revoked:
        return [("DEL", name), *declare]
    return [*declare, ("SET", name, msgspec.json.encode(record).decode())]


def decode_record(data: bytes) -> KeyRecord:
    """Decode a record that `redis_commands` stored. Raises RegistryError."""
    try:
        return _decode_record(data)
    except msgspec.MsgspecError as error:
        raise RegistryError(f"stored key record: {error}") from error


def read_secret(path: Path) -> bytes:
    """Read the server secret: at least SECRET_BYTES, in hexadecimal. Raises RegistryError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise RegistryError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise RegistryError(f"{path}: not hexadecimal") from None
    return parse_secret(text, str(path))


def parse_secret(text: str, origin: str) -> bytes:
    """Read a server secret from text; `origin` names it in errors. Raises RegistryError."""
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        raise RegistryError(f"{origin}: not hexadecimal") from None
    if len(secret) < SECRET_BYTES:
        raise RegistryError(f"{origin}: shorter than {SECRET_BYTES} bytes")
    return secret


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
