"""The fleet as a picture: each worker's pool and steps, and what each pair hands over.

Pure: from two readings of the metrics pages, and from the spans of handoffs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from baton.page import span_names
from baton.page.exposition import Samples, grown
from baton.page.fleet_source import WORKER_ROLES, Service
from baton.page.fleet_view import Reading
from baton.page.span_names import count
from baton.page.span_store import StoredSpan

_EMPTY = Samples()
_STEPS = "baton_step_batch_size"


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """What a worker's card shows beside its row; None without a step in between."""

    num_blocks: int
    num_used: int
    num_promised: int
    num_cached: int
    batch: float | None
    step_ms: float | None
    busy_share: float
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class PairPicture:
    """The handoffs from one prefill worker to one decode worker.

    `added_s` is the median time that they added after the prompt was computed.
    """

    prefill: str
    decode: str
    transport: str
    num_handoffs: int
    num_bytes: int
    bytes_per_s: float
    added_s: float | None


def worker_pictures(before: Reading, after: Reading) -> dict[str, WorkerPicture]:
    """A picture of each worker that answers."""
    elapsed_s = max(after.at_s - before.at_s, 1e-3)
    return {
        name: _worker(before.pages.get(name) or _EMPTY, page, elapsed_s)
        for name, page in after.of(*WORKER_ROLES).items()
    }


def _worker(old: Samples, page: Samples, elapsed_s: float) -> WorkerPicture:
    num_steps = grown(old, page, f"{_STEPS}_count")
    busy_s = grown(old, page, "baton_engine_busy_seconds")
    return WorkerPicture(
        num_blocks=int(page.total("baton_kv_blocks")),
        num_used=int(page.total("baton_kv_blocks_used")),
        num_promised=int(page.total("baton_kv_blocks_promised")),
        num_cached=int(page.total("baton_kv_blocks_cached")),
        batch=grown(old, page, f"{_STEPS}_sum") / num_steps if num_steps else None,
        step_ms=busy_s * 1e3 / num_steps if num_steps else None,
        busy_share=min(busy_s / elapsed_s, 1.0),
        num_preemptions=int(grown(old, page, "vllm:num_preemptions_total")),
    )


# What `pair_pictures` needs.
SPANS = (span_names.HANDOFF, span_names.PREFILL, span_names.PREFILL_COMPUTE, span_names.DECODE)


def pair_pictures(
    spans: Sequence[StoredSpan], names: Mapping[str, str], window_s: float
) -> list[PairPicture]:
    """The pairs that handed over, from spans of handoffs, of prefills and of decodes. `names` are
    the prefill workers by their endpoint."""
    # The prompt is computed in a part of the prefill worker's side, whose parent is the handoff.
    sides = {
        span.span_id: span.parent_id
        for span in spans
        if span_names.kind_of(span) == span_names.PREFILL
    }
    prefilled_ns: dict[str, int] = {}
    decodes: dict[str, str] = {}
    for span in spans:
        kind = span_names.kind_of(span)
        if kind == span_names.PREFILL_COMPUTE:
            handoff = sides.get(span.parent_id, span.parent_id)
            prefilled_ns[handoff] = max(span.end_ns, prefilled_ns.get(handoff, 0))
        elif kind == span_names.DECODE:
            decodes[span.span_id] = span.attributes.get(span_names.WORKER, "")
    of_pair: dict[tuple[str, str], list[StoredSpan]] = defaultdict(list)
    for span in spans:
        if span_names.kind_of(span) == span_names.HANDOFF:
            prefill = names.get(span.attributes.get(span_names.PREFILL_ENDPOINT, ""), "")
            # The span of a decode that still runs is not there yet, nor is one that was killed.
            decode = span.attributes.get(span_names.WORKER) or decodes.get(span.parent_id, "")
            if prefill and decode:
                of_pair[prefill, decode].append(span)
    return [
        _pair(prefill, decode, own, prefilled_ns, window_s)
        for (prefill, decode), own in sorted(of_pair.items())
    ]


def _pair(
    prefill: str,
    decode: str,
    handoffs: Sequence[StoredSpan],
    prefilled_ns: Mapping[str, int],
    window_s: float,
) -> PairPicture:
    num_bytes = sum(count(span.attributes, span_names.NUM_BYTES) for span in handoffs)
    added = [
        max(span.end_ns - prefilled_ns[span.span_id], 0) / 1e9
        for span in handoffs
        if span.span_id in prefilled_ns
    ]
    transports = {span.attributes.get(span_names.TRANSPORT, "") for span in handoffs} - {""}
    return PairPicture(
        prefill=prefill,
        decode=decode,
        transport=", ".join(sorted(transports)),
        num_handoffs=len(handoffs),
        num_bytes=num_bytes,
        bytes_per_s=num_bytes / window_s,
        added_s=median(added) if added else None,
    )


def prefill_names(services: Sequence[Service]) -> dict[str, str]:
    """The prefill workers by their endpoint."""
    return {each.endpoint: each.name for each in services if each.role == "prefill"}
