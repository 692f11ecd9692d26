"""A view of a fleet: the work of each service, from two reads of its metrics page.

Pure: it knows pages, not where they come from. `baton top` prints it, the local web page draws it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from baton.page.exposition import Samples, grown, quantile
from baton.page.fleet_source import WORKER_ROLES

_EMPTY = Samples()


@dataclass(frozen=True, slots=True)
class Reading:
    """All metrics pages of a fleet at one moment; None for a service that did not answer."""

    at_s: float
    pages: Mapping[str, Samples | None]
    # The role of each service, by its name.
    roles: Mapping[str, str]

    def of(self, *roles: str) -> dict[str, Samples]:
        """The pages of the services that have one of these roles, and that answered."""
        return {
            name: page for name, page in self.pages.items() if page and self.roles[name] in roles
        }

    def together(self, *roles: str) -> Samples:
        """The samples of all services that have one of these roles."""
        return Samples.together(self.of(*roles).values())


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, with a field for each figure that the page shows.

    Shares are of 1; `hit_share` is None while no prompt came in.
    """

    name: str
    is_up: bool
    role: str = ""
    model: str = ""
    num_running: int = 0
    num_waiting: int = 0
    num_parked: int = 0
    kv_share: float = 0.0
    promised_share: float = 0.0
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    hit_share: float | None = None


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """One gateway."""

    name: str
    is_up: bool
    num_open: int = 0
    requests_per_s: float = 0.0
    failed_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Median and 95th percentile in seconds between two readings; None without observations."""

    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class Healed:
    """Counts of the failures that were healed since the stack started."""

    num_moved: int
    num_resumed: int
    num_ejections: int
    num_quarantined: int
    num_bad_blocks: int


@dataclass(frozen=True, slots=True)
class FleetView:
    """All rows and figures of one view."""

    gateways: list[GatewayRow]
    workers: list[WorkerRow]
    others: dict[str, bool]
    num_queued: int
    queued_prefill_s: dict[str, float]
    first_token: Latency
    token_gap: Latency
    healed: Healed
    violations: dict[str, int] = field(default_factory=dict)


def fleet_view(before: Reading, after: Reading) -> FleetView:
    """The rates from `before` to `after`, and the state at `after`."""
    elapsed_s = max(after.at_s - before.at_s, 1e-3)
    was, now = before.together("gateway"), after.together("gateway")
    router = after.together("router")
    everything = Samples.together(page for page in after.pages.values() if page)
    violations = everything.by("baton_audit_violations_total", "check")
    gateways, workers, others = [], [], {}
    for name, page in after.pages.items():
        old = before.pages.get(name) or _EMPTY
        role = after.roles[name]
        if role == "gateway":
            gateways.append(_gateway(name, old, page, elapsed_s))
        elif role in WORKER_ROLES:
            row = WorkerRow(name, is_up=False, role=role)
            workers.append(row if page is None else _worker(row, old, page, elapsed_s))
        else:
            others[name] = page is not None
    return FleetView(
        gateways=gateways,
        workers=workers,
        others=others,
        # Each router keeps a queue of its own.
        num_queued=int(router.total("baton_router_queue_requests")),
        queued_prefill_s=_longest(after, "baton_router_queued_prefill_seconds"),
        first_token=_latency(was, now, "vllm:time_to_first_token_seconds"),
        token_gap=_latency(was, now, "vllm:inter_token_latency_seconds"),
        healed=_healed(now, router, after),
        violations={check: int(count) for check, count in violations.items() if count},
    )


def _gateway(name: str, old: Samples, page: Samples | None, elapsed_s: float) -> GatewayRow:
    if page is None:
        return GatewayRow(name, is_up=False)
    return GatewayRow(
        name,
        is_up=True,
        num_open=int(page.total("baton_gateway_open_requests")),
        requests_per_s=grown(old, page, "vllm:e2e_request_latency_seconds_count") / elapsed_s,
        failed_per_s=grown(old, page, "baton_gateway_failed_requests_total") / elapsed_s,
    )


def _worker(down: WorkerRow, old: Samples, page: Samples, elapsed_s: float) -> WorkerRow:
    """The row of a worker that answered, from the one that it has when it does not."""
    num_blocks = page.total("baton_kv_blocks") or 1.0
    num_asked = grown(old, page, "vllm:prefix_cache_queries_total")
    num_hit = grown(old, page, "vllm:prefix_cache_hits_total")
    return replace(
        down,
        is_up=True,
        model=", ".join(page.by("baton_kv_blocks", "model_name")),
        num_running=int(page.total("vllm:num_requests_running")),
        num_waiting=int(page.total("vllm:num_requests_waiting")),
        num_parked=int(page.total("baton_num_requests_parked")),
        kv_share=page.total("baton_kv_blocks_used") / num_blocks,
        promised_share=page.total("baton_kv_blocks_promised") / num_blocks,
        prompt_tokens_per_s=_computed_of_prompts(old, page) / elapsed_s,
        output_tokens_per_s=grown(old, page, "vllm:generation_tokens_total") / elapsed_s,
        hit_share=num_hit / num_asked if num_asked else None,
    )


def _computed_of_prompts(old: Samples, page: Samples) -> float:
    """Prompt tokens that this worker computed: all tokens of its steps without output tokens and
    drafts. Tokens that came by handoff were computed elsewhere."""
    num_computed = grown(old, page, "vllm:iteration_tokens_total_sum")
    num_output = grown(old, page, "vllm:generation_tokens_total")
    num_guessed = grown(old, page, "vllm:spec_decode_num_draft_tokens_total")
    return max(num_computed - num_output - num_guessed, 0.0)


def _latency(was: Samples, now: Samples, histogram: str) -> Latency:
    return Latency(quantile(was, now, histogram, 0.5), quantile(was, now, histogram, 0.95))


def _longest(reading: Reading, gauge: str) -> dict[str, float]:
    """The largest value of any router, by role: one that has just started may know less."""
    longest: dict[str, float] = {}
    for page in reading.of("router").values():
        for role, seconds in page.by(gauge, "role").items():
            longest[role] = max(longest.get(role, 0.0), seconds)
    return longest


def _most(reading: Reading, counter: str) -> float:
    """The largest count of any router."""
    return max((page.total(counter) for page in reading.of("router").values()), default=0.0)


def _healed(gateways: Samples, router: Samples, after: Reading) -> Healed:
    workers = after.together(*WORKER_ROLES)
    return Healed(
        num_moved=int(gateways.total("baton_gateway_moves_total")),
        num_resumed=int(gateways.total("baton_gateway_lost_streams_total", outcome="resumed")),
        # Every router counts all ejections that it sees.
        num_ejections=int(_most(after, "baton_router_ejections_total")),
        num_quarantined=int(router.total("baton_router_quarantined_requests_total")),
        num_bad_blocks=int(workers.total("baton_handoff_bad_blocks_total")),
    )
