"""The version of the protocol between two processes.

Every hello, stream and call names the newest version that its sender speaks. Both sides speak
the older of the two. A side that does not speak it any more refuses, and names both versions.
Within one version the protocol only grows: a reader ignores fields and frames that it does not
know, and never takes them for others (protos/baton/wire/v1).
"""

from baton.wire.failures import Incompatible

PROTOCOL_VERSION = 2
OLDEST_PROTOCOL_VERSION = 2


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
