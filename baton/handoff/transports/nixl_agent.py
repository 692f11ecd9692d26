"""One NIXL agent: registers memory, reads a peer's memory into it from afar (RDMA, NVLink, UCX).

An optional extra: `pip install nixl-cu12`. Uses nothing of NIXL's that unpickles what a peer has
sent. Knows nothing of blocks. See https://github.com/ai-dynamo/nixl.
"""

import ctypes
import importlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

# The package depends on the CUDA version; each works without a GPU.
_PACKAGES = ("nixl_cu12", "nixl_cu13")
_BACKEND = "UCX"


class Memory(NamedTuple):
    """Where registered memory lies, in NIXL's words."""

    kind: str = "DRAM"  # or "VRAM"
    device_id: int = 0


HOST = Memory()


class NixlMissing(Exception):
    """NIXL is asked for and not installed."""


class NixlError(Exception):
    """NIXL could not do what it was asked for."""


class NixlAgent:
    """One agent per pool, in one thread alone; what is registered with it lies in `memory`.

    One whose memory is read has a thread of NIXL's that answers peers where the network does not
    (TCP); measured, it costs a fifth of a core at rest. One that reads asks NIXL itself.
    Raises NixlMissing and NixlError.
    """

    def __init__(self, name: str, *, is_read: bool, memory: Memory = HOST) -> None:
        api, bindings = _import()
        self.memory = memory
        self._errors = tuple(
            getattr(bindings, name) for name in dir(bindings) if name.endswith("Error")
        )
        # Links to each peer; their reads are of one kind.
        self._num_links: Counter[str] = Counter()
        config = api.nixl_agent_config(backends=[_BACKEND], enable_prog_thread=is_read)
        self._agent = self._try(lambda: api.nixl_agent(name, config))

    def register(self, address: int, num_bytes: int) -> None:
        """Let peers, and our own reads, use this memory for the life of the agent."""
        kind, device_id = self.memory
        regions = [(address, num_bytes, device_id, "")]
        self._try(lambda: self._agent.register_memory(regions, kind, backends=[_BACKEND]))

    def metadata(self) -> bytes:
        """The metadata that a peer needs to reach the memory registered here."""
        return bytes(self._try(self._agent.get_agent_metadata))

    def add_peer(self, metadata: bytes) -> str:
        """The peer's name, for a link that is over with `remove_peer`."""
        peer = bytes(self._try(lambda: self._agent.add_remote_agent(metadata))).decode()
        self._num_links[peer] += 1
        return peer

    def remove_peer(self, peer: str) -> None:
        """A link to it is gone, and nothing on it is under way."""
        self._num_links[peer] -= 1
        if not self._num_links[peer]:
            del self._num_links[peer]
            self._try(lambda: self._agent.remove_remote_agent(peer))

    def start_read(
        self, peer: str, pages: list[tuple[int, int]], target: int, theirs: Memory = HOST
    ) -> Any:
        """Read the peer's `pages` (address, bytes), one after the other, to `target`: a handle.

        Pages are of one size, in registered memory that is `theirs` there.
        """
        return self._try(lambda: self._start_read(peer, pages, target, theirs))

    def has_ended(self, read: Any) -> bool:
        """No part of a read is under way any more. Raises NixlError when it has failed."""
        state = self._try(lambda: self._agent.check_xfer_state(read))
        if state == "ERR":
            raise NixlError("the read has failed")
        return bool(state == "DONE")

    def release(self, read: Any) -> None:
        """Forget a read, ending it if need be. Raises NixlError while it cannot be ended."""
        self._try(read.release)

    def _start_read(
        self, peer: str, pages: list[tuple[int, int]], target: int, theirs: Memory
    ) -> Any:
        num_bytes = sum(size for _, size in pages)
        regions = [(target, num_bytes)]
        if len(pages) > 1:  # NIXL wants equal lists
            starts = range(target, target + num_bytes, pages[0][1])
            regions = [(start, pages[0][1]) for start in starts]
        read = self._agent.initialize_xfer(
            "READ", self._descriptors(regions, self.memory), self._descriptors(pages, theirs), peer
        )
        self._agent.transfer(read)
        return read

    def _descriptors(self, regions: list[tuple[int, int]], memory: Memory) -> Any:
        kind, device_id = memory
        return self._agent.get_xfer_descs([(*region, device_id) for region in regions], kind)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._errors as error:
            raise NixlError(f"{type(error).__name__}: {error}") from error


def address_of(memory: memoryview) -> int:
    """Where writable memory lies; its owner keeps it there."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _import() -> tuple[Any, Any]:
    """NIXL's Python interface and its bindings."""
    for package in _PACKAGES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ModuleNotFoundError:
            continue
        # It would write to standard output, at every start.
        logger = logging.getLogger("nixl")
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
        return api, importlib.import_module(f"{package}._bindings")
    raise NixlMissing("transport nixl: not installed; pip install nixl-cu12")
