"""The router's settings, read once from BATON_ROUTER_* variables."""

from dataclasses import dataclass
from typing import Literal

from baton.runtime.discovery.members import Target

ENVIRONMENT_PREFIX = "BATON_ROUTER_"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits and weights of the router; each field is one variable."""

    # Address of its gRPC server, host:port; port 0 = any free one.
    listen: str = "127.0.0.1:7400"
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:7401"
    # Its name among the routers of the fleet; each has another one.
    router_id: str = "router-0"
    # Where it runs, as the cloud or the cluster names it; gateways prefer routers of their zone.
    zone: str = ""
    # All workers, prefill and decode alike; each reports its role. Addresses (host:port), names
    # that stand for several, or kubernetes:[NAMESPACE/]SERVICE[:PORT].
    workers: tuple[str, ...] = ()
    # All routers of the fleet, named like the workers; this one finds itself among them by its
    # router_id. They tell each other what they give away, and gateways ask all of them.
    peers: tuple[str, ...] = ()
    # always: a prefill worker computes every prompt; auto: local prefill is a candidate, too.
    disaggregate: Literal["always", "auto"] = "always"

    # Requests that may wait for one model, divided by the tenants that wait.
    max_queued: int = 1024
    # Bytes of prefix hashes that they may keep, divided in the same way.
    max_queued_bytes: int = 64 * 1024 * 1024
    # Longest wait of a request in seconds; one that is predicted to wait for more than 0.8 of it is
    # refused at once.
    max_wait_s: float = 60.0
    # Seconds that a request waits for a ready worker: a killed one on a small node is back after 8
    # s.
    no_worker_wait_s: float = 10.0
    # Seconds after its start for which the router expects workers that have not registered yet.
    settle_s: float = 5.0
    # Seconds after which a pool is forgotten, all of whose workers have been lost and unlisted: its
    # model was taken away. Long, because until then it is an outage that alerts must show.
    forget_after_s: float = 3600.0
    # Seconds without a report after which a worker counts as busy.
    stale_after_s: float = 1.0
    # Seconds for which the last known state of all workers is used when they fall silent together.
    isolation_s: float = 30.0
    # Seconds of silence after which a worker is ejected, and gateways migrate its streams.
    eject_after_s: float = 2.0
    # Seconds that an ejected worker must have been well before it is on probation: one stream at a
    # time.
    return_after_s: float = 2.0
    # Seconds for which a pick counts against its workers until their reports name the request.
    slot_lease_s: float = 2.0
    # Seconds for which a worker that refused a request is excluded from the next picks of that
    # request; it also must have reported again.
    exclusion_s: float = 0.25
    # With disaggregate=always: seconds without a ready prefill worker after which decode workers
    # prefill short prompts themselves.
    local_prefill_after_s: float = 1.0
    # Longest such prompt, in tokens that are not in the decode worker's prefix cache.
    local_prefill_max_tokens: int = 2048

    # The weight of a second of slower output beside a second of TTFT, in the score of a pair.
    itl_weight: float = 1.0
    # With this many sequences a decode step takes twice as long as with none.
    batch_doubling: float = 16.0
    # Largest share of their blocks that decode workers promise in sum, up to 1.
    promise_cap: float = 0.3
    # Blocks that are promised for the growth of each sequence beyond its prompt.
    growth_blocks: int = 2
    # Seconds without a new measurement after which a rate counts as unknown.
    speed_trust_s: float = 60.0
    # Prompt tokens per second of a worker that has not measured its own rate yet.
    prior_prefill_tokens_per_s: float = 2000.0
    # Seconds of a decode step of a worker that has not measured its own yet.
    prior_decode_step_s: float = 0.02
    # Bytes per second of a handoff between two workers that have not measured theirs yet.
    prior_handoff_bytes_per_s: float = 250e6
    # The same between two zones: the rate that counts at most until it is measured.
    prior_far_handoff_bytes_per_s: float = 125e6
    # Seconds that a handoff between two zones costs beside its time, because traffic between zones
    # is paid for.
    far_handoff_cost_s: float = 0.005

    # Prefix hashes that the index holds of one worker at most; its oldest ones go first. Each takes
    # about 100 bytes.
    max_index_hashes: int = 131_072
    # Seconds between two looks for what has changed of the fleet, to tell gateways.
    admission_interval_s: float = 0.1
    # Seconds for which running calls may go on after the signal to stop.
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
