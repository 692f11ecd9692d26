"""The transports that a worker's settings give it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baton.handoff.negotiation import Transport, Transports
from baton.handoff.transport import PLAIN
from baton.handoff.transports.device_transport import DeviceTransport
from baton.handoff.transports.grpc_stream import GrpcTransport
from baton.handoff.transports.nixl import NixlTransport
from baton.handoff.transports.shared_memory import SharedMemoryTransport, SharedPool

NAMES = ("shm", "nixl", PLAIN)
_AGENT_NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class HandoffOptions:
    """`names`: which transports, best first; `folder`: what workers of one host share.

    `checksum_every`: every so many-th block that moves from device to device is verified.
    """

    names: tuple[str, ...] = (PLAIN,)
    folder: Path | None = None
    checksum_every: int = 1

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in NAMES]
        if unknown:
            raise ValueError(f"transports: {', '.join(unknown)} is none of {', '.join(NAMES)}")
        if PLAIN not in self.names:
            raise ValueError(f"transports must have {PLAIN}, which works with every peer")
        if self.checksum_every < 1:
            raise ValueError("checksum_every must be at least 1")


def make_transports(
    options: HandoffOptions,
    pool: SharedPool,
    random_bytes: Callable[[int], bytes],
    *,
    is_sender: bool,
    device: DeviceTransport | None = None,
) -> Transports:
    """`device` is nixl where the core reads and is read. Raises OSError when the folder cannot be
    made, NixlMissing and NixlError."""
    made: list[Transport] = []
    for name in options.names:
        if name == PLAIN:
            made.append(GrpcTransport(pool.blocks))
        elif name == "shm" and options.folder is not None and sys.platform == "linux":
            options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.append(SharedMemoryTransport(options.folder, pool, random_bytes))
        elif name == "nixl" and device is not None:
            made.append(device)
        elif name == "nixl":
            # A name of its own in each life: peers know it by what they were told then.
            life = random_bytes(_AGENT_NAME_BYTES).hex()
            made.append(NixlTransport(pool, f"{pool.worker_id}-{life}", is_sender=is_sender))
    return Transports(made)
