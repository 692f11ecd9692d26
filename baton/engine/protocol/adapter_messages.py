"""The messages about LoRA adapters, both ways; part of `messages.py`.

An adapter is known by its fingerprint (`wire/fingerprint.py`), in all messages and hashes.
"""

import msgspec


class Adapter(msgspec.Struct, array_like=True, frozen=True):
    """An adapter and the folder with its files, which the core reads when it is asked for."""

    fingerprint: str
    folder: str


class ServeAdapters(msgspec.Struct, array_like=True, tag="adapters"):
    """Serve these adapters from now on, and no others; running sequences keep theirs."""

    adapters: list[Adapter]


class AdaptersServed(msgspec.Struct, array_like=True):
    """The fingerprints that are served now, and (fingerprint, fault) of what cannot be loaded.

    Answers ServeAdapters, and comes again when the files of an adapter are not there any more.
    """

    fingerprints: list[str]
    faults: list[tuple[str, str]] = []
