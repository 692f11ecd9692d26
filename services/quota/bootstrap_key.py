"""The bootstrap key: a deployment's first key, which a secret store makes and mounts as a file.

It stands for the tenant `bootstrap` without limits. Further keys go into the registry.
"""

import asyncio
from pathlib import Path

from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import Entries, KeyRecord, RegistryError, key_digest, read_secret

TENANT = "bootstrap"
_MIN_CHARS = 20
_SHOWN_CHARS = 7


def record_of(api_key: str, server_secret: bytes) -> KeyRecord:
    """Build the key's record; the same key gives the same record."""
    digest = key_digest(server_secret, api_key).hex()
    return KeyRecord(
        key_id=f"bootstrap-{digest[:8]}",
        tenant=TENANT,
        digest=digest,
        shown=api_key[:_SHOWN_CHARS],
        created_unix_s=0,
        limits=KeyLimits(),
    )


def read_bootstrap_key(key_file: Path, secret_file: Path) -> Entries:
    """Read the key, as a registry of one. Raises RegistryError, which names the file and never its
    content."""
    try:
        api_key = key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RegistryError(f"{key_file}: {type(error).__name__}") from None
    if len(api_key) < _MIN_CHARS or not api_key.isascii() or not api_key.isprintable():
        raise RegistryError(f"{key_file}: not an API key of {_MIN_CHARS} or more characters")
    record = record_of(api_key, read_secret(secret_file))
    return Entries({record.key_id: record})


class BootstrapKey:
    """Reads the key for the registry. A changed secret file counts at the next read of the key."""

    def __init__(self, secret_file: Path) -> None:
        self._secret_file = secret_file

    async def read(self, key_file: Path) -> Entries:
        return await asyncio.to_thread(read_bootstrap_key, key_file, self._secret_file)
