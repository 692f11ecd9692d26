"""Settings of the gateway: BATON_GATEWAY_*, read once at start (docs/configuration.md)."""

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Literal

PREFIX = "BATON_GATEWAY_"
# What the process that parses them takes in one frame, with room for more.
MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_STORED_BYTES = 256 * 1024 * 1024
# A list for a reranker always has room, however long it is.
MIN_HELD_VECTOR_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The gateway's settings; each field is one variable.

    Endpoints are host:port; port 0 = any free one.
    """

    # One endpoint, whose name may stand for several addresses, or several with IPv4 addresses.
    quota: tuple[str, ...]
    tokenizer: tuple[str, ...]
    # The same routers, under the same addresses, for every gateway: they choose alike.
    router: tuple[str, ...]
    secret_file: Path
    # fd:N = a socket that the parent process has bound.
    listen: str = "127.0.0.1:8080"
    # Services that alone may call, by TLS with their certificates (BATON_TLS_*): envoy. Anyone may
    # ask /readyz. Empty = anyone may call, in plain HTTP.
    callers: tuple[str, ...] = ()
    admin_listen: str = "127.0.0.1:0"
    # kubernetes: quota and tokenizer are names of Services, and are reached at the addresses of
    # their EndpointSlices, which the account may watch.
    discovery: Literal["names", "kubernetes"] = "names"
    # Processes that serve on the same socket, each a gateway of its own with all limits below.
    processes: int = 1
    # Name in logs and hellos; empty = host name and process id.
    gateway_id: str = ""
    # Where it runs, as the cloud or the cluster names it: routers of its zone are asked first.
    zone: str = ""
    # alias=model or alias=model:weight
    aliases: tuple[str, ...] = ()
    # The same, one per line; read again when it changes.
    aliases_file: Path | None = None
    # Usage records that wait for the quota service; one gateway per folder.
    outbox_dir: Path = Path(".baton/outbox")
    # Our own proxies in front, each of which adds to x-forwarded-for. The address before them is
    # the client's, by which wrong keys are counted.
    num_proxies: int = 0
    # Whoever calls this gateway decides about the sampling of traces: an Envoy of ours, or a mesh.
    # Else a client's trace is a link of one that begins here.
    trust_traces: bool = False
    # The trace of a request whose first token takes longer is kept, as that of a failed one is,
    # also where it was not sampled: the gateway's own span of it. 0 = none for that reason.
    slow_first_token_s: float = 10.0
    # Metrics under OpenTelemetry's names, beside vLLM's.
    gen_ai_metrics: bool = True
    # Models that have series of their own in this gateway's metrics; all others share one.
    metered_models: int = 50
    # Pages that may read answers in a browser: https://chat.example, http://localhost:*, or *.
    cors_origins: tuple[str, ...] = ()
    # Of a page with the spans of a request; answers tell it in x-trace-url, with their request's id
    # at its end. Empty = they do not.
    trace_url: str = ""
    max_body_bytes: int = 8 * 1024 * 1024
    max_open_requests: int = 4096
    # The bytes of bodies that are read and parsed at once; more wait for a moment.
    max_held_body_bytes: int = 64 * 1024 * 1024
    # Of vectors that wait until the list of inputs is done that they belong to. One list, and one
    # tenant, may have half; longer lists are refused, and what does not fit waits for a moment.
    max_held_vector_bytes: int = 128 * 1024 * 1024
    # The part of open requests and of bodies that one tenant may have.
    tenant_share: float = 0.25
    # Redis, in which responses and conversations are kept for clients; empty = nothing is kept. The
    # forms of BATON_QUOTA_REDIS_URL.
    store_url: str = ""
    store_username: str = ""
    store_password_file: Path | None = None
    store_timeout_s: float = 0.5
    store_connections: int = 64
    # From the last change of a response or a conversation.
    store_ttl_s: float = 30 * 86_400.0
    # Of one tenant, whose oldest ones make room for new ones.
    store_bytes_of_tenant: int = 64 * 1024 * 1024
    store_objects_of_tenant: int = 10_000
    # Of one response, with all that stands before it, or of one conversation.
    store_object_bytes: int = 2 * 1024 * 1024
    # Tenants of which nothing is kept.
    store_excludes: tuple[str, ...] = ()
    # Of batches, which are kept there, too: bytes and lines of one file, bytes of all files of one
    # tenant, and lines of one batch that are answered at once.
    batch_file_bytes: int = 16 * 1024 * 1024
    batch_lines: int = 50_000
    batch_bytes_of_tenant: int = 64 * 1024 * 1024
    batch_concurrency: int = 8
    default_output_reservation: int = 512
    # Of one answer: choices x tokens x (1 + top_logprobs); 20 MB of JSON.
    max_logprobs: int = 262_144
    deadline_s: float = 600.0
    token_gap_s: float = 20.0
    # The predicted wait of a new request from which on Envoys send them to other regions, as far as
    # those have room; 0 = never.
    full_wait_s: float = 2.0
    # How long a client may read nothing of its answer.
    stall_s: float = 30.0
    # JSON web tokens beside API keys: their issuer (empty = none are taken) and the audience that
    # they are for. Without a URL of its keys (JWKS) the issuer's configuration says it.
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_jwks_url: str = ""
    jwt_algorithms: tuple[str, ...] = ("RS256", "ES256")
    # The claim that names the registry's identity, and one that may list models (empty = none).
    jwt_tenant_claim: str = "tenant"
    jwt_models_claim: str = ""
    jwt_leeway_s: float = 30.0
    # Networks of the proxies that check client certificates and tell of them in
    # x-forwarded-client-cert (empty = they are not a way in), and the field that is their name.
    certificate_proxies: tuple[str, ...] = ()
    certificate_name: Literal["uri", "dns", "subject"] = "uri"
    # The service that judges prompts and answers, as OpenAI's /v1/moderations; empty = none does.
    safety_url: str = ""
    safety_model: str = ""
    safety_key_file: Path | None = None
    safety_timeout_s: float = 2.0
    # While it does not answer: refuse (closed), or let all pass (open).
    safety_fails: Literal["closed", "open"] = "closed"
    # After the signal to stop it is not ready at once, but serves new requests for so long: until
    # the balancers in front have noticed.
    unready_s: float = 5.0
    # How long open requests may go on then.
    drain_s: float = 120.0

    def __post_init__(self) -> None:
        for name in (
            "processes",
            "max_body_bytes",
            "max_open_requests",
            "default_output_reservation",
            "max_logprobs",
            "metered_models",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        self._check_store()
        if not 0 < self.tenant_share <= 1:
            raise ValueError("tenant_share must be above 0, and 1 at most")
        if self.max_body_bytes > MAX_BODY_BYTES:
            raise ValueError(f"max_body_bytes must be at most {MAX_BODY_BYTES}")
        if self.max_held_body_bytes < self.max_body_bytes:
            raise ValueError("max_held_body_bytes must be at least max_body_bytes")
        if self.max_held_vector_bytes < MIN_HELD_VECTOR_BYTES:
            raise ValueError(f"max_held_vector_bytes must be at least {MIN_HELD_VECTOR_BYTES}")
        if self.jwt_issuer and not (self.jwt_audience and self.jwt_algorithms):
            raise ValueError("jwt_issuer needs jwt_audience and jwt_algorithms")
        for name in ("quota", "tokenizer", "router"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one endpoint")
        for name in ("quota", "tokenizer"):
            _check_replicas(name, getattr(self, name), self.discovery)

    def _check_store(self) -> None:
        if "@" in self.store_url.partition("?")[0]:
            raise ValueError("store_url must not hold a password: give it in store_password_file")
        if self.store_username and not self.store_password_file:
            raise ValueError("store_username needs store_password_file")
        for name in ("timeout_s", "connections", "ttl_s", "objects_of_tenant", "object_bytes"):
            if getattr(self, f"store_{name}") < (1 if name != "timeout_s" else 0.001):
                raise ValueError(f"store_{name} is too small")
        if self.store_bytes_of_tenant < self.store_object_bytes:
            raise ValueError("store_bytes_of_tenant must be at least store_object_bytes")
        for name in ("file_bytes", "lines", "concurrency"):
            if getattr(self, f"batch_{name}") < 1:
                raise ValueError(f"batch_{name} must be at least 1")
        # A string of Redis has no more.
        if not self.batch_file_bytes <= self.batch_bytes_of_tenant <= MAX_STORED_BYTES:
            raise ValueError(
                "batch_bytes_of_tenant must be at least batch_file_bytes, and "
                f"{MAX_STORED_BYTES} at most"
            )


def _check_replicas(name: str, endpoints: tuple[str, ...], discovery: str) -> None:
    """Refuse names in a list of replicas, which grpc's address resolver does not take."""
    if len(endpoints) == 1:
        return
    if discovery == "kubernetes":
        raise ValueError(f"{name} must be the name of one Service with discovery=kubernetes")
    for endpoint in endpoints:
        try:
            IPv4Address(endpoint.rpartition(":")[0])
        except AddressValueError:
            raise ValueError(f"{name}: {endpoint!r} in a list must have an IPv4 address") from None
