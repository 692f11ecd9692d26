"""Takes in what peers have given away, as if this router had: every value is checked.

A peer's word can do little harm: leases end by themselves, a charge is bounded, unknown workers and
models are ignored. What a peer tells makes a worker look fuller; the worker itself decides.
"""

import math
from collections.abc import Callable

from baton.wire.key_registry import MAX_PRIORITY
from baton.wire.v1 import peers_pb2
from services.router.fleet.fleet import Fleet
from services.router.fleet.quarantine import Quarantine
from services.router.fleet.worker import SlotLease, Worker
from services.router.peers.placements import Row, rows_of
from services.router.pick.on_the_way import MAX_MARKS, SentMarks
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

    def _place(self, placed: peers_pb2.Placements, age_s: float) -> None:
        """Take in requests that got their workers."""
        names = list(placed.names)
        self._take_requests(placed, names, age_s)
        num_requests = len(placed.request_ids)
        for session in list(placed.sessions)[:num_requests]:
            if max((session.model, *session.workers)) < len(names):
                self._note_session(session, names)
        for served in list(placed.services)[:num_requests]:
            if max(served.model, served.tenant) < len(names):
                self._serve(served, names, MAX_SERVICE_S * num_requests)
        self._retry_budget.num_first += min(placed.num_first, num_requests)

    def _take_requests(self, placed: peers_pb2.Placements, names: list[str], age_s: float) -> None:
        """Count each request on its workers, and its prompt where it is going to be computed."""
        fleet, ends_at = self._fleet, self._fleet.lease_end() - age_s
        # The last one is for places that are not there.
        workers = [*map(fleet.known, names), None]
        for row, marks in rows_of(placed):
            if len(row.request_id) > MAX_NAME_CHARS:
                continue
            decode, prompt = workers[row.decode], workers[row.prompt]
            given = [
                (worker, lease)
                for worker, lease in zip((decode, prompt), _leases_of(row, ends_at), strict=False)
                if worker is not None and _is_on_its_way(row, worker)
            ]
            fleet.take_leases(row.request_id, given)
            if marks and prompt is not None:
                self._expect(prompt, marks, row.expected_s - age_s)

    def _expect(self, worker: Worker, marks: list[int], expected_s: float) -> None:
        if 0 < expected_s < math.inf:
            self._selector.expect(SentMarks(worker.endpoint, marks[:MAX_MARKS], expected_s))

    def _serve(self, served: peers_pb2.TenantService, names: list[str], most_s: float) -> None:
        tenant = names[served.tenant]
        if len(tenant) <= MAX_NAME_CHARS and 0 < served.service_s <= most_s:
            turn = Turn(tenant, min(served.priority, MAX_PRIORITY))
            self._charge(names[served.model], turn, served.service_s)

    def _note_session(self, session: peers_pb2.SessionWorkers, names: list[str]) -> None:
        model_fp = names[session.model]
        if self._selector.is_known(model_fp):
            ids = [names[place] for place in list(session.workers)[:MAX_SLOTS]]
            known = [each for each in ids if self._fleet.known(each) is not None]
            self._selector.sessions.note(model_fp, session.session, known)


def _leases_of(row: Row, ends_at: float) -> tuple[SlotLease, ...]:
    """The leases of a request: on its decode worker, and on another one that computes its
    prompt."""
    request_id, decode, prompt, num_sequences, num_blocks, num_tokens, _, _ = row
    if decode == prompt:
        return (SlotLease(request_id, num_sequences, num_blocks, num_tokens, ends_at),)
    return (
        SlotLease(request_id, num_sequences, num_blocks, 0, ends_at),
        SlotLease(request_id, num_sequences, 0, num_tokens, ends_at),
    )


def _is_on_its_way(row: Row, worker: Worker) -> bool:
    """Return whether the worker is there and has not reported the request."""
    return worker.connected and not worker.leases.was_early(row.request_id)
