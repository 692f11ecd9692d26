"""The keys: loads them from files into Redis, and looks a key up by its digest.

The files are the truth, Redis has a copy. Because the lookup is by digest, its time does not show
how much of a guessed key is right. The files are loaded at the start, when one of them changes,
when Redis came back empty (its marker is gone), and when the last archive's part of the budgets is
there. A lookup that misses checks for these before it refuses, so a key works as soon as it is
created. A revoked key stays revoked, whatever a file says that lags (revocations.py). Another
server under the same address, a promoted replica for one, may hold older keys although it has the
marker: it is loaded, too. While Redis does not answer, keys are looked up in the files
(file_keys.py).
Knows nothing of the limits' meaning; `baton.wire.key_registry` owns the formats.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from baton.keys.redis_copy import publish
from baton.runtime import logs
from baton.wire import failures, key_registry
from baton.wire.key_limits import KeyLimits, organisation_of, owner_key
from baton.wire.key_registry import Entries, KeyRecord, Record
from baton.wire.v1 import quota_pb2
from services.quota import instruments
from services.quota.file_keys import FileKeys, Source, Stamp, stamps_of
from services.quota.revocations import Revocations
from services.quota.store import Store

T = TypeVar("T")

_DIGEST_BYTES = 32
_log = logs.get("quota.registry")


class Budgets(Protocol):
    """The spent part of budgets, which an empty Redis gets back from all archives."""

    async def counted(self) -> tuple[bool, bool]:
        """Returns whether this replica's part is in Redis, and whether all parts are."""

    async def count_own(self, entries: Entries) -> None:
        """Put this replica's part into Redis, once."""


class NoBudgets:
    """Nothing is archived, so nothing can be restored."""

    async def counted(self) -> tuple[bool, bool]:
        return True, True

    async def count_own(self, entries: Entries) -> None:
        """Do nothing."""


class UnreadableRecord(failures.Unavailable):
    """The store answers, but not with a key's record."""


class Registry:
    """The keys in Redis, kept equal to files; without files, those in Redis alone.

    `sources` are the files and how each is read; of a key in several files, the last one counts. An
    empty Redis gets what `budgets` restores before the keys' limits.
    """

    def __init__(
        self,
        store: Store,
        sources: Sequence[Source],
        *,
        fresh_for_s: float = 5.0,
        budgets: Budgets | None = None,
        revocations: Revocations | None = None,
    ) -> None:
        self._store = store
        self._sources = sources
        self._fresh_for_s = fresh_for_s
        self._budgets: Budgets = budgets or NoBudgets()
        self._revocations = revocations or Revocations(store)
        self._files = FileKeys(sources, self._revocations)
        self._loading = asyncio.Lock()
        self._loaded_stamps: list[Stamp | None] | None = None
        self._loaded_into = ""
        self._is_restoring = False

    async def authenticate(self, digest: bytes) -> quota_pb2.AuthenticateResponse:
        """Return the principal of a key; by the files while the store does not answer. Raises
        AuthenticationFailed, Unavailable."""
        if len(digest) != _DIGEST_BYTES:
            raise failures.AuthenticationFailed("the API key is not valid")
        try:
            record = await self._in_store(digest)
            more_limits = await self._more_limits(record)
        except UnreadableRecord:
            raise
        except failures.Unavailable:
            found = await self._files.find(digest.hex())
            if found is None:
                raise
            return self._principal(found, self._more_limits_of_files(found), is_from_files=True)
        return self._principal(record, more_limits)

    def _principal(
        self,
        record: KeyRecord,
        more_limits: Iterable[quota_pb2.MoreLimits],
        *,
        is_from_files: bool = False,
    ) -> quota_pb2.AuthenticateResponse:
        return quota_pb2.AuthenticateResponse(
            tenant=record.tenant,
            key_id=record.key_id,
            limits=record.limits.to_wire(),
            more_limits=more_limits,
            allowed_models=record.allowed_models,
            priority=record.priority,
            weight=record.weight,
            fresh_for_s=self._fresh_for_s,
            is_from_files=is_from_files,
        )

    async def _in_store(self, digest: bytes) -> KeyRecord:
        """The record of a key in the store. Raises AuthenticationFailed, Unavailable."""
        name = key_registry.principal_key(digest)
        data = await self._store.execute("GET", name)
        if data is None:
            # Look again even if this refresh loaded nothing: another one may have just now.
            await self.refresh()
            data = await self._store.execute("GET", name)
        if data is None or await self._revocations.holds(digest.hex()):
            raise failures.AuthenticationFailed("the API key is not valid")
        return _decoded(key_registry.decode_record, data)

    async def _more_limits(self, record: KeyRecord) -> list[quota_pb2.MoreLimits]:
        """The limits that hold for a key beside its own over all models."""
        found = list(_wire_limits(record.key_id, record.limits))[1:]
        for owner in _owners_of(record):
            if (data := await self._store.execute("GET", owner_key(owner))) is not None:
                found += _wire_limits(owner, _decoded(key_registry.decode_owner, data).limits)
        return found

    def _more_limits_of_files(self, record: KeyRecord) -> list[quota_pb2.MoreLimits]:
        """The same by the files."""
        found = list(_wire_limits(record.key_id, record.limits))[1:]
        for owner in _owners_of(record):
            if (limits := self._files.limits_of(owner)) is not None:
                found += _wire_limits(owner, limits)
        return found

    async def refresh(self) -> bool:
        """Load the files if one changed or Redis lost them, or to restore budgets; returns whether
        they were loaded.

        A file that cannot be read is logged; the keys loaded before stay. Raises Unavailable.
        """
        if not self._sources:
            return False
        async with self._loading:
            server = await self._store.identity()
            stamps = stamps_of(self._sources)
            marker = await self._store.execute("GET", key_registry.LOADED_KEY)
            own, every = await self._budgets.counted()
            is_current = stamps == self._loaded_stamps and self._is_restoring != every
            if marker and is_current and own and server == self._loaded_into:
                await self._revocations.follow()
                return False
            try:
                await self._load(stamps, marker)
            except key_registry.RegistryError as error:
                instruments.QUOTA_REGISTRY_LOADS.labels("unusable").inc()
                _log.error("registry_unusable", error=str(error))
                return False
            self._loaded_into = server
            return True

    async def declare(self, record: Record) -> None:
        """Give Redis a record that its durable home has got just now. A revocation is kept also
        while Redis is away. Raises Unavailable."""
        if isinstance(record, KeyRecord) and record.revoked:
            await self._revocations.add([record.digest])
        await publish(self._store.execute, [record])

    async def _load(self, stamps: list[Stamp | None], marker: bytes | None) -> None:
        entries = Entries()
        for file, read in self._sources:
            entries |= await read(file)
        await self._revocations.add(key.digest for key in entries.keys.values() if key.revoked)
        await self._revocations.agree()
        entries = self._revocations.applied_to(entries)
        await self._budgets.count_own(entries)
        _, every = await self._budgets.counted()
        await self._write(entries.records(), is_restoring=not every)
        known = key_registry.BUDGETS_KNOWN if every else key_registry.BUDGETS_RESTORING
        await self._store.execute("SET", key_registry.LOADED_KEY, known)
        if known != marker:
            # Others may have written hard budgets meanwhile, by what the marker said before.
            hard = [record for record in entries.records() if record.limits.has_hard_budget]
            await self._write(hard, is_restoring=not every)
        self._loaded_stamps, self._is_restoring = stamps, not every
        instruments.QUOTA_REGISTRY_LOADS.labels("loaded").inc()
        _log.info(
            "registry_loaded",
            num_keys=len(entries.keys),
            came_back_empty=marker is None,
            budgets_known=every,
        )

    async def _write(self, records: Iterable[Record], *, is_restoring: bool) -> None:
        await self._store.execute_all(
            command
            for record in records
            for command in key_registry.redis_commands(record, is_restoring=is_restoring)
        )


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except key_registry.RegistryError as error:
        _log.error("key_record_corrupt", error=str(error))
        raise UnreadableRecord(
            "the key's record cannot be read", reason="quota_unavailable"
        ) from error


def _owners_of(record: KeyRecord) -> list[str]:
    """Whose limits hold for a key, beside its own."""
    owners = [f"tenant:{record.tenant}"]
    if organisation := organisation_of(record.tenant):
        owners.append(f"organisation:{organisation}")
    return owners


def _wire_limits(owner: str, limits: KeyLimits) -> Iterator[quota_pb2.MoreLimits]:
    for model, of_model in limits.by_models():
        yield quota_pb2.MoreLimits(owner=owner, model=model, limits=of_model.to_wire())
