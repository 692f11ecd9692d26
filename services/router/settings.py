"""The router's settings, read once from BATON_ROUTER_* variables."""

from dataclasses import dataclass
from typing import Literal

from baton.runtime.discovery.members import Target

ENVIRONMENT_PREFIX = "BATON_ROUTER_"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits and weights of the router; each field is one variable.

    Times end in _s, counts begin with num_ or max_.
    """

    listen: str = "127.0.0.1:7400"
    admin_listen: str = "127.0.0.1:7401"
    router_id: str = "router-0"
    # Where it runs, as the cloud or the cluster names it; gateways prefer routers of their zone.
    zone: str = ""
    # All workers, prefill and decode alike; each reports its role. Addresses ("host:port"), names
    # that stand for several, or "kubernetes:[NAMESPACE/]SERVICE[:PORT]" (baton/runtime/discovery).
    workers: tuple[str, ...] = ()
    # All routers of the fleet, named like the workers; this one finds itself among them by its
    # router_id. They tell each other what they give away, and gateways ask all of them.
    peers: tuple[str, ...] = ()
    # always: a prefill worker computes every prompt; auto: local prefill is a candidate, too.
    disaggregate: Literal["always", "auto"] = "always"

    # The number of requests that may wait for one model, and the longest wait of one; a request
    # that is predicted to wait for more than 0.8 of it is refused at once.
    max_queued: int = 1024
    # The bytes of prefix hashes that they may keep. Both are divided by the tenants that wait.
    max_queued_bytes: int = 64 * 1024 * 1024
    max_wait_s: float = 60.0
    # How long a request waits for a ready worker: a killed one on a small node is back after 8 s.
    no_worker_wait_s: float = 10.0
    # How long after its start the router expects workers that have not registered yet.
    settle_s: float = 5.0
    # A pool is forgotten when all its workers have been lost and unlisted for this long: its model
    # was taken away. Long, because until then it is an outage that alerts must show.
    forget_after_s: float = 3600.0
    # A worker without a report for this long counts as busy.
    stale_after_s: float = 1.0
    # When all workers fall silent together, their last known state is used for this long.
    isolation_s: float = 30.0
    # A worker that is silent for this long is ejected, and gateways migrate its streams.
    eject_after_s: float = 2.0
    # An ejected worker that has been well for this long is on probation: one stream at a time.
    return_after_s: float = 2.0
    # How long a pick counts against its workers until their reports name the request.
    slot_lease_s: float = 2.0
    # A worker that refused a request is excluded from the next picks of that request for this
    # long, and until it has reported again.
    exclusion_s: float = 0.25
    # With disaggregate=always: when no prefill worker has been ready for this long, decode workers
    # prefill prompts of which at most this many tokens are not in their prefix cache.
    local_prefill_after_s: float = 1.0
    local_prefill_max_tokens: int = 2048

    # The weight of a second of slower output beside a second of TTFT, in the score of a pair.
    itl_weight: float = 1.0
    # With this many sequences a decode step takes twice as long as with none.
    batch_doubling: float = 16.0
    # Decode workers promise at most this share of their blocks in sum, and this many blocks for the
    # growth of each sequence beyond its prompt.
    promise_cap: float = 0.3
    growth_blocks: int = 2
    # A rate that a worker has not measured again for this long counts as unknown.
    speed_trust_s: float = 60.0
    # The rates that count until the workers have measured their own.
    prior_prefill_tokens_per_s: float = 2000.0
    prior_decode_step_s: float = 0.02
    prior_handoff_bytes_per_s: float = 250e6
    # Between two zones: the rate that counts at most until it is measured, and the seconds that
    # such a handoff costs beside its time, because traffic between zones is paid for.
    prior_far_handoff_bytes_per_s: float = 125e6
    far_handoff_cost_s: float = 0.005

    # Prefix hashes that the index holds of one worker at most; its oldest ones go first. Each takes
    # about 100 bytes.
    max_index_hashes: int = 131_072
    # How often gateways get the view of the fleet when nothing changes.
    admission_interval_s: float = 0.1
    # How long running calls may go on after the router was asked to stop.
    stop_grace_s: float = 1.0

    def __post_init__(self) -> None:
        for name in (
            "max_queued",
            "max_queued_bytes",
            "slot_lease_s",
            "batch_doubling",
            "max_index_hashes",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")
        if not 0 < self.promise_cap <= 1:
            raise ValueError(f"promise_cap {self.promise_cap} is not in (0, 1]")
        for target in (*self.workers, *self.peers):
            Target.parse(target)
