"""The transport of a pair of workers, agreed in the hellos of each link (decision 0010).

The decode worker offers what it can and trusts; the prefill worker takes the first of its own that
can be set up with this peer. Both name theirs best first; the plain stream is everybody's last.
"""

from collections.abc import Sequence
from typing import Protocol

from baton.handoff.transport import PLAIN, ReceivingEnd, SendingEnd, TransportFailed
from baton.wire.failures import Incompatible
from baton.wire.v1 import handoff_pb2


class Offered(Protocol):
    """One transport between the two hellos of a link."""

    def connect(self, answer: handoff_pb2.PrefillHello) -> ReceivingEnd:
        """The peer has taken it up. Raises TransportFailed."""

    def close(self) -> None:
        """The hellos are over. Safe to call again."""


class Transport(Protocol):
    """One way in which a worker can move pages."""

    name: str

    def offer(self, hello: handoff_pb2.DecodeHello) -> Offered:
        """Put in what the peer needs to take it up. Raises TransportFailed."""

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> SendingEnd:
        """Set it up with the peer of `hello`. Raises TransportFailed."""


class Offer:
    """The transports that one hello of a decode worker offers. `with` closes them."""

    def __init__(self, offered: dict[str, Offered]) -> None:
        self._offered = offered

    def __enter__(self) -> "Offer":
        return self

    def __exit__(self, *_: object) -> None:
        for offered in self._offered.values():
            offered.close()

    def connect(self, answer: handoff_pb2.PrefillHello) -> ReceivingEnd:
        """The end that the peer has chosen. Raises Incompatible and TransportFailed."""
        offered = self._offered.get(answer.transport)
        if offered is None:
            ours = ", ".join(self._offered)
            raise Incompatible(
                f"transport {answer.transport!r} of {answer.worker_id} is none of {ours} here"
            )
        return offered.connect(answer)


class Transports:
    """One worker's, best first."""

    def __init__(self, transports: Sequence[Transport]) -> None:
        assert transports
        self._transports = transports

    @property
    def names(self) -> list[str]:
        return [transport.name for transport in self._transports]

    def offer(self, hello: handoff_pb2.DecodeHello, *, only_plain: bool = False) -> Offer:
        """Put into the hello what works here; after a failure at this peer only the plain one."""
        offered: dict[str, Offered] = {}
        for transport in self._transports:
            if only_plain and transport.name != PLAIN:
                continue
            try:
                offered[transport.name] = transport.offer(hello)
            except TransportFailed:
                continue  # the others will do
        hello.transports.extend(offered)
        hello.takes_stripes = True
        return Offer(offered)

    def accept(
        self, hello: handoff_pb2.DecodeHello, answer: handoff_pb2.PrefillHello
    ) -> SendingEnd:
        """The first of ours that works with this peer, named in the answer.

        Raises Incompatible naming both lists.
        """
        for transport in self._transports:
            if transport.name not in hello.transports:
                continue
            try:
                end = transport.accept(hello, answer)
            except TransportFailed:
                continue  # such as another folder: nothing is wrong
            answer.transport = transport.name
            return end
        here, there = ", ".join(self.names), ", ".join(hello.transports) or "none"
        raise Incompatible(f"no common transport: {here} here, {there} there")
