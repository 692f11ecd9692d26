"""The requests that got their workers, as one message of columns for many of them.

A message for each would cost both routers about a third of a pick.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from baton.wire.limits import MAX_CHOICES
from baton.wire.v1 import peers_pb2
from services.router.fleet.reported import MAX_BLOCKS
from services.router.fleet.worker import SlotLease
from services.router.pick.pick_request import MAX_PROMPT_TOKENS, PickRequest
from services.router.pick.placement import Placement
from services.router.queue.fair_line import Turn

_NO_MARKS: Sequence[int] = ()


class Row(NamedTuple):
    """One request of the columns; its workers by their places among the names."""

    request_id: str
    decode: int
    prompt: int
    num_sequences: int
    num_blocks: int
    num_prefill_tokens: int
    num_marks: int
    expected_s: float


class PlacedRequest(NamedTuple):
    """One request, with the leases of its workers by their ids: the decode worker first, the one
    that computes its prompt last. `marks` are of a prompt that is new there."""

    request_id: str
    model_fp: str
    session: bytes
    turn: Turn
    service_s: float
    is_first: bool
    leases: Sequence[tuple[str, SlotLease]]
    marks: Sequence[int]
    expected_s: float

    @classmethod
    def of(cls, wanted: PickRequest, placement: Placement) -> Self:
        """Take what peers need of a pick; the prompt's hashes are not kept."""
        sent = placement.sent
        return cls(
            wanted.request_id,
            wanted.model_fp,
            wanted.session,
            wanted.turn,
            0.0 if wanted.has_begun else placement.engine_s / wanted.turn.weight,
            not wanted.excluded,
            placement.leases,
            _NO_MARKS if sent is None else sent.marks,
            0.0 if sent is None else sent.expected_s,
        )


def columns_of(requests: Sequence[PlacedRequest]) -> peers_pb2.Placements:
    """Return the message about these requests, the oldest first."""
    names: dict[str, int] = {}
    decodes, prompts, leases = [], [], []
    marks: list[int] = []
    for request in requests:
        decode_id, decode_lease = request.leases[0]
        prompt_id, prompt_lease = request.leases[-1]
        decodes.append(names.setdefault(decode_id, len(names)))
        prompts.append(names.setdefault(prompt_id, len(names)))
        leases.append((decode_lease, prompt_lease))
        marks += request.marks
    services = _services(requests, names)
    sessions = _sessions(requests, names)
    return peers_pb2.Placements(
        request_ids=[request.request_id for request in requests],
        decode_workers=decodes,
        prompt_workers=prompts,
        num_sequences=[decode.num_sequences for decode, _ in leases],
        num_blocks=[decode.num_blocks for decode, _ in leases],
        num_prefill_tokens=[prompt.num_prefill_tokens for _, prompt in leases],
        num_marks=[len(request.marks) for request in requests],
        expected_s=[request.expected_s for request in requests],
        marks=marks,
        services=services,
        sessions=sessions,
        num_first=sum(request.is_first for request in requests),
        names=names,  # last: the others add to them
    )


def rows_of(placed: peers_pb2.Placements) -> Iterator[tuple[Row, list[int]]]:
    """The requests of a message, each with its marks, and its numbers within their limits; not
    those for which a column is too short. A worker that is not named has the place behind all."""
    columns = (
        placed.request_ids,
        _at_most(placed.decode_workers, len(placed.names)),
        _at_most(placed.prompt_workers, len(placed.names)),
        _at_most(placed.num_sequences, MAX_CHOICES),
        _at_most(placed.num_blocks, MAX_BLOCKS),
        _at_most(placed.num_prefill_tokens, MAX_PROMPT_TOKENS),
        placed.num_marks,
        placed.expected_s,
    )
    marks, end = list(placed.marks), 0
    for row in map(Row._make, zip(*columns, strict=False)):
        begin, end = end, end + row.num_marks
        yield row, marks[begin:end]


def _at_most(column: Sequence[int], most: int) -> Sequence[int]:
    if max(column, default=0) <= most:
        return column
    return [min(each, most) for each in column]


def _services(
    requests: Sequence[PlacedRequest], names: dict[str, int]
) -> list[peers_pb2.TenantService]:
    sums: dict[tuple[str, str, int], float] = {}
    for request in requests:
        if request.service_s:
            key = request.model_fp, request.turn.tenant, request.turn.priority
            sums[key] = sums.get(key, 0.0) + request.service_s
    return [
        peers_pb2.TenantService(
            model=names.setdefault(model_fp, len(names)),
            tenant=names.setdefault(tenant, len(names)),
            priority=priority,
            service_s=service_s,
        )
        for (model_fp, tenant, priority), service_s in sums.items()
    ]


def _sessions(
    requests: Sequence[PlacedRequest], names: dict[str, int]
) -> list[peers_pb2.SessionWorkers]:
    return [
        peers_pb2.SessionWorkers(
            session=request.session,
            model=names.setdefault(request.model_fp, len(names)),
            workers=[names[worker_id] for worker_id, _ in request.leases],
        )
        for request in requests
        if request.session
    ]
