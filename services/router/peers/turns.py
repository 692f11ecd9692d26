"""The router that goes first where room is short: several routers must not book the same room.

Every router hears of a worker's room by the worker's own report, and its peers' leases reach it a
few milliseconds after their picks. So while requests wait at several routers, each worker is the
turn of one of them, which may take its new room at once; the others leave it alone for TURN_S. The
turn goes from router to router with the worker's steps. All routers compute it alike, without a
word: by rendezvous hashing, each router in proportion to its claim. A claim is the weights of the
tenants that wait there at the largest priority; a tenant that waits at several routers is shared
between them. So the length of a line gives no claim to more, and neither does waiting at many.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from baton.system.clock import Clock
from baton.wire.v1 import peers_pb2
from services.router.peers.news import MAX_TENANTS
from services.router.pick.pick_request import checked_weight

TURN_S = 0.03
# A turn lasts so many steps of a worker: about a second.
STEPS_OF_A_TURN = 64
# The lines of a router that has not spoken for this long do not count.
SILENT_S = 0.5
MAX_LINES = 1024


@dataclass(slots=True)
class _Told:
    """The lines of one router by model, and when they were told."""

    at: float
    lines: Mapping[str, peers_pb2.PeerLine]


class Turns:
    """The lines of all routers, by the names of their lives; `own` is this router's."""

    def __init__(self, own: str, clock: Clock) -> None:
        self._own = own
        self._clock = clock
        self._told: dict[str, _Told] = {}
        # By model, then by router.
        self._claims: dict[str, dict[str, float]] = {}
        # By model: the workers whose room is a peer's turn, and until when.
        self._kept: dict[str, dict[str, float]] = {}
        # True while the lines of any peer are known: without them nothing is left to peers.
        self.has_peers = False
        # True while anybody waits or reserves a worker.
        self._is_any_line = False

    def hear(self, router: str, lines: peers_pb2.PeerLines) -> None:
        """Take the lines of a router, this one's included, as they are told to all; every value is
        checked."""
        self._told[router] = _Told(self._clock.now(), _checked(lines))
        self._changed()

    def lose(self, router: str) -> None:
        """Forget the lines of a router that left."""
        if self._told.pop(router, None) is not None:
            self._changed()

    def is_any_waiting(self) -> bool:
        """Return whether a tenant waits at one of the routers, as they told last."""
        return any(line.tenants for told in self._told.values() for line in told.lines.values())

    def note_room(self, model_fp: str, worker_id: str, step: int) -> bool:
        """Note that a worker has reported; returns whether its room is a peer's turn."""
        if len(self._told) < 2 or not self._is_any_line:
            return False
        if self._first(model_fp, worker_id, step) in (None, self._own):
            return False
        self._kept.setdefault(model_fp, {})[worker_id] = self._clock.now() + TURN_S
        return True

    def kept_away(self, model_fp: str, *, has_begun: bool = False) -> set[str]:
        """The workers that a request must leave to the peers now.

        A stream that has begun waits for nobody's turn, but leaves a peer's reserved worker alone.
        """
        kept = self._reserved(model_fp) if self._is_any_line else set()
        if model_fp in self._kept and not has_begun:
            kept |= self._turns_of_peers(model_fp)
        return kept

    def may_reserve(self, model_fp: str) -> bool:
        """Return whether this router may reserve a worker: one router does at a time."""
        return not any(
            router < self._own or self._line(self._own, model_fp).reserved_worker_id == ""
            for router in self._peers_that_reserve(model_fp)
        )

    def _changed(self) -> None:
        self._claims.clear()
        self.has_peers = any(each != self._own for each in self._told)
        self._is_any_line = any(told.lines for told in self._told.values())

    def _turns_of_peers(self, model_fp: str) -> set[str]:
        now = self._clock.now()
        kept = {each: until for each, until in self._kept.pop(model_fp).items() if until > now}
        if kept:
            self._kept[model_fp] = kept
        return set(kept)

    def _reserved(self, model_fp: str) -> set[str]:
        peers = self._peers_that_reserve(model_fp)
        return {self._line(peer, model_fp).reserved_worker_id for peer in peers}

    def _peers_that_reserve(self, model_fp: str) -> list[str]:
        return [
            router
            for router in self._told
            if router != self._own and self._line(router, model_fp).reserved_worker_id
        ]

    def _line(self, router: str, model_fp: str) -> peers_pb2.PeerLine:
        """The router's line of a model; an empty one when it has none or has fallen silent."""
        told = self._told.get(router)
        if told is None or self._clock.now() - told.at > SILENT_S:
            return peers_pb2.PeerLine()
        return told.lines.get(model_fp) or peers_pb2.PeerLine()

    def _first(self, model_fp: str, worker_id: str, step: int) -> str | None:
        """The router whose turn the worker is; None when no router has a claim."""
        if (claims := self._claims.get(model_fp)) is None:
            claims = self._claims[model_fp] = self._claims_of(model_fp)
        if len(claims) < 2:
            return next(iter(claims), None)
        turn = f"{worker_id} {step // STEPS_OF_A_TURN}"
        return min(claims, key=lambda router: _drawn(f"{router} {turn}") / claims[router])

    def _claims_of(self, model_fp: str) -> dict[str, float]:
        lines = {router: self._line(router, model_fp) for router in self._told}
        waiting = {router: line for router, line in lines.items() if line.tenants}
        largest = max((line.priority for line in waiting.values()), default=0)
        first = {router: line for router, line in waiting.items() if line.priority == largest}
        num_lines = Counter(each.tenant for line in first.values() for each in line.tenants)
        return {
            router: sum(each.weight / num_lines[each.tenant] for each in line.tenants)
            for router, line in first.items()
        }


def _checked(lines: peers_pb2.PeerLines) -> dict[str, peers_pb2.PeerLine]:
    """A router's lines by model, within their limits."""
    checked = {}
    for line in list(lines.lines)[:MAX_LINES]:
        del line.tenants[MAX_TENANTS:]
        for each in line.tenants:
            each.weight = checked_weight(each.weight)
        checked[line.model_fp] = line
    return checked


def _drawn(text: str) -> float:
    """A number drawn by the text: of several, each divided by its weight, the least is any one's
    in proportion to the weights."""
    digest = blake2b(text.encode(), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "little") + 1) / 2**64)
