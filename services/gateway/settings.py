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
    """The gateway's settings; each field is one variable."""

    # The quota service, host:port. One name may stand for several addresses; a list has IPv4
    # addresses only.
    quota: tuple[str, ...]
    # The tokenizer service, in the same forms.
    tokenizer: tuple[str, ...]
    # The routers, host:port each. Every gateway has the same ones under the same addresses, so that
    # they choose alike.
    router: tuple[str, ...]
    # File with the server secret, 64 hexadecimal characters, from which digests of keys and cache
    # keys are derived.
    secret_file: Path
    # Address of the public API, host:port; port 0 = any free one, fd:N = a socket that the parent
    # process has bound.
    listen: str = "127.0.0.1:8080"
    # Services that alone may call, by TLS with their certificates (BATON_TLS_*): envoy. Anyone may
    # ask /readyz. Empty = anyone may call, in plain HTTP.
    callers: tuple[str, ...] = ()
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:0"
    # kubernetes: quota and tokenizer are names of Services, and are reached at the addresses of
    # their EndpointSlices, which the account may watch. names: they are resolved by DNS.
    discovery: Literal["names", "kubernetes"] = "names"
    # Processes that serve on the same socket, each a gateway of its own with all limits of this
    # table.
    processes: int = 1
    # Its name in logs and towards other services; empty = host name and process id.
    gateway_id: str = ""
    # Where it runs, as the cloud or the cluster names it; routers of its zone are asked first.
    zone: str = ""
    # Other public names of models: alias=model or alias=model:weight.
    aliases: tuple[str, ...] = ()
    # A file of aliases, one per line; read again when it changes.
    aliases_file: Path | None = None
    # Folder of usage records that wait for the quota service; each gateway has one of its own.
    outbox_dir: Path = Path(".baton/outbox")
    # Our own proxies in front, each of which adds to x-forwarded-for. The address before them is
    # the client's, by which wrong keys are counted.
    num_proxies: int = 0
    # The caller of this gateway decides about the sampling of traces: an Envoy of ours, or a mesh.
    # Else a client's trace is a link of one that begins here.
    trust_traces: bool = False
    # A request whose first token takes more seconds has its gateway's span kept, as a failed one
    # has, also where it was not sampled. 0 = none for that reason.
    slow_first_token_s: float = 10.0
    # Write metrics under OpenTelemetry's names, beside vLLM's.
    gen_ai_metrics: bool = True
    # Models that have series of their own in this gateway's metrics; all others share one.
    metered_models: int = 50
    # Pages that may read answers in a browser: https://chat.example, http://localhost:*, or *.
    cors_origins: tuple[str, ...] = ()
    # Address of a page with the spans of a request. Answers tell it in x-trace-url, with their
    # request's id at its end. Empty = they do not.
    trace_url: str = ""
    # Largest body of a request, 32 MiB at most.
    max_body_bytes: int = 8 * 1024 * 1024
    # Requests that are open at once; more are refused, and told to come again.
    max_open_requests: int = 4096
    # Bytes of bodies that are read and parsed at once; more wait for a moment.
    max_held_body_bytes: int = 64 * 1024 * 1024
    # Bytes of vectors that wait until their list of inputs is done. One list, and one tenant, may
    # have half; longer lists are refused, and what does not fit waits for a moment.
    max_held_vector_bytes: int = 128 * 1024 * 1024
    # The part of open requests and of bodies that one tenant may have, up to 1.
    tenant_share: float = 0.25
    # Redis, in which responses, conversations and batches are kept for clients, in the forms of
    # BATON_QUOTA_REDIS_URL; empty = nothing is kept.
    store_url: str = ""
    # User of that Redis; empty = its default user.
    store_username: str = ""
    # File with the password of that Redis, read anew for each connection.
    store_password_file: Path | None = None
    # File with the password of its Sentinels, read anew for each connection; without it they are
    # shown none.
    store_sentinel_password_file: Path | None = None
    # Seconds for one call to that Redis.
    store_timeout_s: float = 0.5
    # Connections to that Redis at most.
    store_connections: int = 64
    # Seconds for which a response or a conversation is kept after its last change; 30 days.
    store_ttl_s: float = 30 * 86_400.0
    # Bytes that are kept for one tenant, whose oldest objects make room for new ones.
    store_bytes_of_tenant: int = 64 * 1024 * 1024
    # Responses and conversations that are kept for one tenant.
    store_objects_of_tenant: int = 10_000
    # Bytes of one response, with all that stands before it, or of one conversation.
    store_object_bytes: int = 2 * 1024 * 1024
    # Tenants of which nothing is kept.
    store_excludes: tuple[str, ...] = ()
    # Bytes of one file of a batch.
    batch_file_bytes: int = 16 * 1024 * 1024
    # Lines of one batch.
    batch_lines: int = 50_000
    # Bytes of all files of one tenant's batches, 256 MiB at most.
    batch_bytes_of_tenant: int = 64 * 1024 * 1024
    # Lines of one batch that are answered at once.
    batch_concurrency: int = 8
    # Output tokens that are reserved for a request without max_tokens, and by which its reservation
    # grows.
    default_output_reservation: int = 512
    # Logprobs of one answer: choices x tokens x (1 + top_logprobs); 20 MB of JSON.
    max_logprobs: int = 262_144
    # Seconds for a whole request, unless its client asks for fewer.
    deadline_s: float = 600.0
    # Seconds without a token after which a worker is given up, and the answer goes on at another
    # one.
    token_gap_s: float = 20.0
    # Seconds of predicted wait from which on Envoys send new requests to other regions, as far as
    # those have room; 0 = never.
    full_wait_s: float = 2.0
    # Seconds for which a client may read nothing of its answer.
    stall_s: float = 30.0
    # Issuer of JSON web tokens that are taken beside API keys; empty = none are.
    jwt_issuer: str = ""
    # The audience that those tokens must be for.
    jwt_audience: str = ""
    # Address of the issuer's keys (JWKS); empty = the issuer's configuration says it.
    jwt_jwks_url: str = ""
    # Algorithms by which those tokens may be signed.
    jwt_algorithms: tuple[str, ...] = ("RS256", "ES256")
    # The claim that names the registry's identity.
    jwt_tenant_claim: str = "tenant"
    # The claim that lists the models a token may use; empty = none.
    jwt_models_claim: str = ""
    # Seconds by which the issuer's clock may differ.
    jwt_leeway_s: float = 30.0
    # Networks of the proxies that check client certificates and tell of them in x-forwarded-client-
    # cert; empty = certificates are not a way in.
    certificate_proxies: tuple[str, ...] = ()
    # The field of a client's certificate that is its name.
    certificate_name: Literal["uri", "dns", "subject"] = "uri"
    # The service that judges prompts and answers, as OpenAI's /v1/moderations; empty = none does.
    safety_url: str = ""
    # The model that it is asked for; empty = its own choice.
    safety_model: str = ""
    # File with the key for that service.
    safety_key_file: Path | None = None
    # Seconds for one of its judgements.
    safety_timeout_s: float = 2.0
    # While that service does not answer: refuse (closed), or let all pass (open).
    safety_fails: Literal["closed", "open"] = "closed"
    # Seconds after the signal to stop for which it serves new requests and is unready, until the
    # balancers in front have noticed.
    unready_s: float = 5.0
    # Seconds for which open requests may go on after that.
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
        if self.store_sentinel_password_file and "+sentinel:" not in self.store_url:
            raise ValueError("store_sentinel_password_file is for redis+sentinel:// in store_url")
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
