"""Takes in what peers have given away, as if this router had: every value is checked.

A peer's word can do little harm: leases end by themselves, a charge is bounded, unknown workers and
models are ignored. What a peer tells makes a worker look fuller; the worker itself decides.
"""

import math
from collections.abc import Callable

from baton.wire.key_registry import MAX_PRIORITY
from baton.wire.limits import MAX_CHOICES
from baton.wire.v1 import peers_pb2
from services.router.fleet.fleet import Fleet
from services.router.fleet.quarantine import Quarantine
from services.router.fleet.reported import MAX_BLOCKS
from services.router.fleet.worker import SlotLease
from services.router.pick.on_the_way import MAX_MARKS, SentMarks
from services.router.pick.pick_request import MAX_PROMPT_TOKENS
from services.router.pick.selector import Selector
from services.router.queue.fair_line import Turn
from services.router.queue.retry_budget import RetryBudget

MAX_SERVICE_S = 3600.0
MAX_NAME_CHARS = 256
MAX_SLOTS = 2


class PeerIntake:
    """The one way in for peers' events. `charge(model_fp, turn, seconds)` counts a tenant's
    service."""

    def __init__(
        self,
        fleet: Fleet,
        selector: Selector,
        charge: Callable[[str, Turn, float], None],
        quarantine: Quarantine,
        retry_budget: RetryBudget,
    ) -> None:
        self._fleet = fleet
        self._selector = selector
        self._charge = charge
        self._quarantine = quarantine
        self._retry_budget = retry_budget

    def take(self, event: peers_pb2.PeerEvent) -> None:
        """Take in an event of one peer; an unknown kind is ignored."""
        kind = event.WhichOneof("event")
        if kind == "placed":
            self._place(event.placed, event.age_ms / 1000)
        elif kind == "ended_request_id":
            self._fleet.end_leases(event.ended_request_id)
        elif kind == "failed":
            self._fleet.failed(event.failed.worker_id)
            self._retry_budget.spend(has_begun=True)
        elif kind == "suspect":
            self._quarantine.suspect(event.suspect.fingerprint, event.suspect.num_deaths)
        elif kind == "harmless_fingerprint":
            self._quarantine.clear([event.harmless_fingerprint])

    def _place(self, placed: peers_pb2.Placed, age_s: float) -> None:
        if len(placed.request_id) > MAX_NAME_CHARS or len(placed.tenant) > MAX_NAME_CHARS:
            return
        self._fleet.end_leases(placed.request_id)
        for slots in list(placed.slots)[:MAX_SLOTS]:
            self._take_lease(placed.request_id, slots, age_s)
        if placed.session and self._selector.is_known(placed.model_fp):
            ids = [slots.worker_id for slots in list(placed.slots)[:MAX_SLOTS]]
            known = [each for each in ids if self._fleet.known(each) is not None]
            self._selector.sessions.note(placed.model_fp, placed.session, known)
        if placed.HasField("prompt"):
            self._expect(placed.prompt, age_s)
        service_s = placed.service_s
        if math.isfinite(service_s) and 0 < service_s <= MAX_SERVICE_S:
            turn = Turn(placed.tenant, min(placed.priority, MAX_PRIORITY))
            self._charge(placed.model_fp, turn, service_s)
        if placed.is_first:
            self._retry_budget.num_first += 1

    def _take_lease(self, request_id: str, slots: peers_pb2.GivenSlots, age_s: float) -> None:
        worker = self._fleet.known(slots.worker_id)
        if worker is None or not worker.connected or worker.leases.was_early(request_id):
            return
        lease = SlotLease(
            request_id=request_id,
            num_sequences=min(slots.num_sequences, MAX_CHOICES),
            num_blocks=min(slots.num_blocks, MAX_BLOCKS),
            num_prefill_tokens=min(slots.num_prefill_tokens, MAX_PROMPT_TOKENS),
            expires_at=self._fleet.lease_end() - age_s,
        )
        self._fleet.take_lease(slots.worker_id, lease)

    def _expect(self, prompt: peers_pb2.PromptSent, age_s: float) -> None:
        worker = self._fleet.known(prompt.worker_id)
        expected_s = prompt.expected_s - age_s
        if worker is not None and math.isfinite(expected_s) and expected_s > 0:
            marks = list(prompt.marks)[:MAX_MARKS]
            self._selector.expect(SentMarks(worker.endpoint, marks, expected_s))
