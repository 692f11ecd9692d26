"""The changes of keys and limits, each decided on what is in their home at that moment.

Each returns what Redis has to be told then. The key itself is returned once and stored nowhere.
"""

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from baton.keys.homes import RegistryHome
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits, OwnerLimits, TenantName
from baton.wire.key_registry import (
    MAX_PRIORITY,
    MAX_WEIGHT,
    MIN_WEIGHT,
    Entries,
    KeyRecord,
    Line,
    RegistryError,
    Revocation,
)

Priority = Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)]
Weight = Annotated[float, msgspec.Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)]


class UnknownKey(RegistryError):
    """The registry has no key with this id."""


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that is to be made."""

    tenant: TenantName
    limits: KeyLimits = KeyLimits()
    allowed_models: tuple[str, ...] = ()
    priority: Priority = 0
    weight: Weight = 1.0
    # What somebody else vouches for, instead of a key: "jwt:NAME", "cert:NAME".
    identity: str = ""


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a key that are to be replaced."""

    limits: KeyLimits | UnsetType = UNSET
    allowed_models: tuple[str, ...] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    weight: Weight | UnsetType = UNSET

    def applied_to(self, record: KeyRecord) -> KeyRecord:
        """The key with these fields."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        given = {name: value for name, value in fields.items() if value is not UNSET}
        return msgspec.structs.replace(record, **given)


def create(home: RegistryHome, server_secret: bytes, new: NewKey) -> tuple[str, KeyRecord]:
    """Make a key; returns it, and its record. An identity has no key. Raises RegistryError."""
    api_key, record = key_registry.new_key(
        server_secret,
        new.tenant,
        new.limits,
        now_unix_s=time.time(),
        allowed_models=new.allowed_models,
        priority=new.priority,
        weight=new.weight,
        identity=new.identity,
    )
    home.change(lambda entries: [record])
    return api_key, record


def update(home: RegistryHome, key_id: str, changed: Callable[[KeyRecord], KeyRecord]) -> KeyRecord:
    """Change a key. Raises UnknownKey, RegistryError and what `changed` raises."""
    updated: list[KeyRecord] = []

    def decide(entries: Entries) -> Sequence[Line]:
        known = _known(entries, key_id)
        if known.revoked:
            raise RegistryError(f"key {key_id!r} is revoked")
        # What would be unreadable must not be written.
        data = msgspec.json.encode(changed(known))
        updated.append(key_registry.decode_record(data))
        return updated[-1:]

    home.change(decide)
    return updated[-1]


def revoke(home: RegistryHome, key_id: str) -> KeyRecord:
    """Revoke a key, for good; again changes nothing. Raises UnknownKey, RegistryError."""
    revoked: list[KeyRecord] = []

    def decide(entries: Entries) -> Sequence[Line]:
        known = _known(entries, key_id)
        revoked.append(msgspec.structs.replace(known, revoked=True))
        return [] if known.revoked else [Revocation(key_id, int(time.time()))]

    home.change(decide)
    return revoked[-1]


def set_limits(
    home: RegistryHome, level: str, name: str, changed: Callable[[KeyLimits], KeyLimits]
) -> OwnerLimits:
    """Change the limits of a tenant or an organisation; empty ones take them away. Raises
    RegistryError."""
    written: list[OwnerLimits] = []

    def decide(entries: Entries) -> Sequence[Line]:
        known = entries.limits.get(f"{level}:{name}")
        limits = changed(known.limits if known else KeyLimits())
        written.append(key_registry.owner_limits(level, name, limits))
        return written[-1:]

    home.change(decide)
    return written[-1]


def _known(entries: Entries, key_id: str) -> KeyRecord:
    if (record := entries.keys.get(key_id)) is None:
        raise UnknownKey(f"key id {key_id!r} is not in the registry; see: baton keys list")
    return record
