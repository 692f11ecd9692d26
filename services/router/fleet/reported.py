"""Registrations and loads of workers, taken from the wire with every value checked.

A report is the claim of another process: an impossible registration is refused, an impossible value
of a load is clamped. Decides nothing about requests.
"""

import math
from dataclasses import dataclass

from baton.wire.failures import Incompatible
from baton.wire.limits import MAX_ADAPTERS, MAX_BLOCK_SIZE, MAX_ZONE_CHARS, MAX_ZONES
from baton.wire.protocol import agree
from baton.wire.v1 import router_pb2, worker_pb2

MAX_BLOCKS = 1 << 24
MAX_SEQS = 1 << 20
MAX_ENGINE_CHARS = 64
_MAX_ADAPTER_CHARS = 256
_MAX_TOKENS = 1 << 40
_MAX_RATE = 1e15

PREFILL = router_pb2.WORKER_ROLE_PREFILL
DECODE = router_pb2.WORKER_ROLE_DECODE


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A worker's model as its registration describes it; equal for all of one fingerprint."""

    fp: str
    name: str
    revision: str
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The form of a worker's KV blocks; only workers of equal digests can hand blocks over."""

    digest: str
    block_size: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class FarHandoff:
    """The speed of handoffs from another zone, as one worker measured it; 0 = not yet."""

    zone: str
    bytes_per_s: float
    least_s: float


@dataclass(frozen=True, slots=True)
class Registration:
    """One process of one worker, as it introduced itself."""

    worker_id: str
    boot_epoch: int
    role: router_pb2.WorkerRole
    model: ServedModel
    shape: BlockShape
    num_blocks: int
    max_num_seqs: int
    zone: str = ""
    engine: str = ""
    # Parameters that it does not serve.
    unsupported: frozenset[str] = frozenset()
    # A prefill worker that serves gateways, too.
    stands_in: bool = False


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """The figures of a worker's newest load report. A rate of 0 is not measured yet.

    It has more than ten attributes because it has those of the message.
    """

    step_counter: int
    num_running: int
    num_waiting: int
    num_blocks_free: int
    num_blocks_promised: int
    num_queued_prefill_tokens: int
    prefill_tokens_per_s: float
    decode_step_s: float
    handoff_bytes_per_s: float
    is_stalled: bool = False
    chunk_tokens: int = 0
    handoff_s: float = 0.0
    step_wait_s: float = 0.0
    far_handoffs: tuple[FarHandoff, ...] = ()
    # Passed on as it is.
    totals: router_pb2.EngineTotals | None = None


def registration_of(message: worker_pb2.Register) -> Registration:
    """Check a registration. Raises Incompatible for an impossible one, and for one that this
    version cannot serve."""
    agree(message.protocol, peer=message.worker_id or "a worker", own="the router")
    _require(bool(message.worker_id), "worker_id is empty")
    _require(bool(message.model_fp), "model_fp is empty")
    _require(message.role in (PREFILL, DECODE), f"role {message.role} is unknown")
    _require_count("block_size", message.block_size, MAX_BLOCK_SIZE)
    _require_count("num_blocks", message.num_blocks, MAX_BLOCKS)
    _require_count("max_num_seqs", message.max_num_seqs, MAX_SEQS)
    return Registration(
        worker_id=message.worker_id,
        boot_epoch=message.boot_epoch,
        role=message.role,
        model=ServedModel(
            fp=message.model_fp,
            name=message.model_name,
            revision=message.model_revision,
            block_size=message.block_size,
            max_model_len=message.max_model_len,
            vocab_size=message.vocab_size,
            eos_token_ids=tuple(message.eos_token_ids),
        ),
        shape=BlockShape(message.kv_spec_digest, message.block_size, message.block_bytes),
        num_blocks=message.num_blocks,
        max_num_seqs=message.max_num_seqs,
        zone=message.zone[:MAX_ZONE_CHARS],
        engine=message.engine[:MAX_ENGINE_CHARS],
        unsupported=frozenset(message.unsupported),
        stands_in=message.stands_in and message.role == PREFILL,
    )


def load_of(message: worker_pb2.Load, registration: Registration) -> ReportedLoad:
    """Return the load with each value clamped to what `registration` allows."""
    num_blocks = registration.num_blocks
    return ReportedLoad(
        step_counter=message.step_counter,
        num_running=min(message.num_running, MAX_SEQS),
        num_waiting=min(message.num_waiting, MAX_SEQS),
        num_blocks_free=min(message.num_blocks_free, num_blocks),
        num_blocks_promised=min(message.num_blocks_promised, num_blocks),
        num_queued_prefill_tokens=min(message.num_queued_prefill_tokens, _MAX_TOKENS),
        prefill_tokens_per_s=_rate(message.prefill_tokens_per_s),
        decode_step_s=_rate(message.decode_step_s),
        handoff_bytes_per_s=_rate(message.handoff_bytes_per_s),
        is_stalled=message.stalled,
        chunk_tokens=message.chunk_tokens,
        handoff_s=_rate(message.handoff_s),
        step_wait_s=_rate(message.step_wait_s),
        far_handoffs=tuple(
            FarHandoff(far.zone[:MAX_ZONE_CHARS], _rate(far.bytes_per_s), _rate(far.least_s))
            for far in message.far_handoffs[:MAX_ZONES]
        ),
        totals=message.totals,
    )


def adapters_of(message: worker_pb2.AdapterList) -> dict[str, str]:
    """The adapters that a worker serves, at most MAX_ADAPTERS: fingerprints by name."""
    return {
        each.name: each.fingerprint
        for each in message.adapters[:MAX_ADAPTERS]
        if each.name and 0 < len(each.fingerprint) + len(each.name) <= _MAX_ADAPTER_CHARS
    }


def idle_load(registration: Registration) -> ReportedLoad:
    """The load that is assumed between Register and the first Load."""
    return ReportedLoad(0, 0, 0, registration.num_blocks, 0, 0, 0.0, 0.0, 0.0)


def _rate(value: float) -> float:
    return min(value, _MAX_RATE) if math.isfinite(value) and value > 0 else 0.0


def _require_count(name: str, count: int, maximum: int) -> None:
    _require(0 < count <= maximum, f"{name} {count} is not in 1..{maximum}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Incompatible(f"registration refused: {message}")
