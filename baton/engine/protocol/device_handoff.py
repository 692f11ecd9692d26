"""The port through which blocks move between the device's pool and other workers' pools.

The front says what to read from which peer. Commands and sequences share one channel, so that a
read that was ended writes into no block that was given back after it. The implementation is
`baton.handoff.transports.device_reads`; without one, blocks move through the shared pool.
"""

from collections.abc import Sequence
from typing import Protocol

from baton.engine.protocol.device_messages import DeviceCommand, DevicePool, PagesRead


class DeviceHandoff(Protocol):
    """Works between two steps of the engine, and on nothing but its pool."""

    def open(self) -> DevicePool:
        """The runner has its pool now: how peers reach it."""

    def apply(self, command: DeviceCommand) -> None:
        """Begin or end what the front asks for. Never fails: a PagesRead reports what did."""

    def poll(self) -> list[PagesRead]:
        """The reads that have ended since the last call."""

    @property
    def next_poll_s(self) -> float | None:
        """In how many seconds `poll` could bring something; None = not before a command."""

    def checksums(self, block_ids: Sequence[int]) -> list[list[int]]:
        """Per block one checksum per layer, of what the steps so far have computed."""
