"""Which version of the wire two processes speak to each other.

Every hello and every unary call names the newest version its sender speaks. Each side speaks the
older of the two, and refuses, naming both, when that is older than it can: a newer peer is spoken
to in the words that both know. Inside one version the wire only grows: fields and frames that a
reader does not know are left aside, never taken for others (protos/baton/wire/v1).
"""

from baton.wire.failures import Incompatible

PROTOCOL_VERSION = 1
OLDEST_PROTOCOL_VERSION = 1


def agree(peer_version: int, *, peer: str, own: str) -> int:
    """The version to speak with `peer`, whose hello named `peer_version`.

    Raises Incompatible when that version is older than any that this process speaks.
    """
    spoken = min(PROTOCOL_VERSION, peer_version)
    if spoken < OLDEST_PROTOCOL_VERSION:
        raise Incompatible(
            f"protocol {peer_version} of {peer} is older than "
            f"{OLDEST_PROTOCOL_VERSION}, the oldest that {own} speaks"
        )
    return spoken
