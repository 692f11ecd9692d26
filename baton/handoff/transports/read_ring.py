"""Slots that one-sided reads land in, and that stay out of use until NIXL is through with them.

A reader of remote memory reads into a slot and copies from there, so that nothing that arrives late
can reach a block: a read that is not waited for any more leaves its slot in quarantine until NIXL
says that it has ended, well or not. Has no clock: the owner polls. Knows nothing of frames and
blocks.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from baton.handoff.block_bytes import MAX_DATA_BYTES
from baton.handoff.transports.nixl_agent import HOST, Memory, NixlAgent, NixlError

POLL_INTERVAL_S = 0.0005
# While none of the reads under way is waited for any more.
QUARANTINE_INTERVAL_S = 0.1


class PeerLink:
    """A link to one peer, whose memory is `memory` there."""

    def __init__(self, peer: str, memory: Memory = HOST) -> None:
        self.peer = peer
        self.memory = memory
        self.is_closed = False


class Read:
    """Pages (address, bytes) of one size on the way into a slot.

    `on_end` is called once: with where in the ring they lie, from then on the owner's slot until
    `ReadRing.free`, or with why they will not come.
    """

    def __init__(
        self, link: PeerLink, pages: list[tuple[int, int]], on_end: Callable[[int | str], None]
    ) -> None:
        self.link = link
        self.pages = pages
        self.on_end = on_end
        self.slot = -1
        self.handle: Any = None
        self.is_given_up = False

    def give_up(self, cause: str) -> None:
        """Say that the pages will not come; the slot may still be written to."""
        if not self.is_given_up:
            self.is_given_up = True
            self.on_end(cause)


class ReadRing:
    """`num_slots` slots of MAX_DATA_BYTES in registered memory; reads beyond them wait in line.

    What waits is bounded by the owner.
    """

    def __init__(self, agent: NixlAgent, address: int, num_slots: int) -> None:
        self._agent = agent
        self._address = address
        agent.register(address, num_slots * MAX_DATA_BYTES)
        self._free = list(range(num_slots))
        self._waiting: deque[Read] = deque()
        self._active: list[Read] = []

    @property
    def num_free_slots(self) -> int:
        """Slots that no read and no pages that were not freed use."""
        return len(self._free)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def next_poll_s(self) -> float | None:
        """In how many seconds `poll` should be called; None = there is nothing to ask for."""
        if not self._active:
            return None
        is_quiet = all(read.is_given_up for read in self._active)
        return QUARANTINE_INTERVAL_S if is_quiet else POLL_INTERVAL_S

    def open(self, metadata: bytes, memory: Memory = HOST) -> PeerLink:
        """A link to the peer with this metadata. Raises NixlError."""
        return PeerLink(self._agent.add_peer(metadata), memory)

    def close(self, link: PeerLink) -> None:
        """The link is gone: what has not arrived does not any more."""
        link.is_closed = True
        self.give_up(lambda read: read.link is link, "the link is closed")
        self._forget_peer(link)

    def add(self, read: Read) -> None:
        """Start a read as soon as a slot is free; more than a slot takes does not come."""
        num_bytes = sum(size for _, size in read.pages)
        if num_bytes > MAX_DATA_BYTES:
            read.give_up(f"{num_bytes} bytes of pages exceed a slot ({MAX_DATA_BYTES})")
            return
        self._waiting.append(read)
        self._start_waiting()

    def give_up(self, is_unwanted: Callable[[Read], bool], cause: str) -> None:
        """These reads are waited for no more."""
        unwanted = [read for read in (*self._waiting, *self._active) if is_unwanted(read)]
        self._waiting = deque(read for read in self._waiting if not is_unwanted(read))
        for read in unwanted:
            read.give_up(cause)

    def free(self, slot_start: int) -> None:
        """The pages that lay there are not needed any more."""
        self._free.append(slot_start // MAX_DATA_BYTES)

    def poll(self) -> None:
        """Tell what has ended, and start what waited."""
        for read in list(self._active):
            self._check(read)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._free:
            read = self._waiting.popleft()
            read.slot = self._free.pop()
            target = self._address + read.slot * MAX_DATA_BYTES
            link = read.link
            try:
                read.handle = self._agent.start_read(link.peer, read.pages, target, link.memory)
            except NixlError as error:
                self._free.append(read.slot)
                read.give_up(str(error))
                continue
            self._active.append(read)

    def _check(self, read: Read) -> None:
        """Hand over what has arrived; keep the slot until NIXL is through with it.

        Also of a read that was given up: NIXL lets go of one that is under way, but does not stop
        its bytes.
        """
        try:
            if not self._agent.has_ended(read.handle):
                return
        except NixlError as error:
            read.give_up(str(error))
        try:
            self._agent.release(read.handle)
        except NixlError:
            return
        self._active.remove(read)
        if read.is_given_up:
            self._free.append(read.slot)
            self._forget_peer(read.link)
        else:
            read.on_end(read.slot * MAX_DATA_BYTES)

    def _forget_peer(self, link: PeerLink) -> None:
        """The agent forgets the peer when the link is closed and nothing is under way."""
        if link.is_closed and not any(read.link is link for read in self._active):
            self._agent.remove_peer(link.peer)
