"""From options to processes: the services of a local stack, their ports and their settings.

Pure apart from looking for free ports, for the Redis binary and at OpenMP's variable. Settings
travel in the environment under the names that each service declares in its settings.py.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from baton.localstack import redis_server
from baton.localstack.builder import Builder
from baton.localstack.edge import ENVOY, EdgePorts, edge_services, require_envoy
from baton.localstack.home import Home
from baton.localstack.models import LocalModel, largest_rank
from baton.localstack.ports import LOOPBACK, PortTaken, free_ports, is_free
from baton.localstack.supervisor import ServiceSpec
from baton.runtime import peer_tls
from baton.system.byte_size import parse_bytes
from baton.system.cores import num_available_cores

# Stopped in this order: nothing new comes in before what runs has ended.
_STOP_GATEWAY, _STOP_ROUTER, _STOP_WORKERS, _STOP_REST, _STOP_REDIS, _STOP_SPANS = range(6)

AUTO = "auto"
# A worker's service is called after its role.
WORKER_PREFIXES = ("prefill-", "decode-")
# The share of the free memory for all workers together: the rest is for other programs.
MEMORY_SHARE = 0.5
# The share of a GPU's memory for the worker that has it for itself.
GPU_MEMORY_SHARE = 0.9
# Longer than any answer of the demo model; less than the supervisor waits before SIGKILL.
DRAIN_S = 30
# For one gateway among several: a load balancer looks at /readyz that often.
UNREADY_S = 1.0
# The name of the local web page's process.
WEB = "web"
# Pages of this machine, on any port.
_LOOPBACK_ORIGINS = ("http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*")
# Services without a model of their own, which may run several times.
REPLICATED = ("gateway", "quota", "tokenizer", "router")
MAX_REPLICAS = 9
# Measured: a worker's two processes with torch and transformers loaded, without weights and pool.
PROCESS_BYTES = 450 * 2**20


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of all workers. None = the worker's own default."""

    dtype: str = "auto"
    num_threads: int | None = None  # None = all cores, divided by the workers
    kv_memory: str = AUTO  # auto = each worker takes its part of MEMORY_SHARE
    max_model_len: int | None = None
    max_batch: int | None = None
    speculation_tokens: int | None = None
    is_deterministic: bool = False
    engine: str = "baton"
    engine_python: str = ""  # empty = this interpreter
    tensor_parallel: int = 1
    prefill_tensor_parallel: int | None = None  # None = as the others
    # Their folders by name.
    adapters: Mapping[str, Path] = field(default_factory=dict)
    # As CUDA_VISIBLE_DEVICES has them, one for each rank of each worker; empty = one for all.
    gpus: tuple[str, ...] = ()
    is_expert_parallel: bool = False

    def num_ranks(self, role: str) -> int:
        """The ranks of a worker with this role."""
        prefill = self.prefill_tensor_parallel if role == "prefill" else None
        return prefill or self.tensor_parallel


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `baton up`."""

    models: list[LocalModel]
    aliases: tuple[str, ...] = ()
    num_prefill: int = 1
    num_decode: int = 2
    disaggregate: str = "always"
    # Number of replicas of each of REPLICATED; 1 where none is given.
    replicas: Mapping[str, int] = field(default_factory=dict)
    worker: WorkerOptions = WorkerOptions()
    port: int = 8080
    spans_forward_to: str = ""
    # Envoy in front of the gateways.
    edge: bool = False

    @property
    def num_workers(self) -> int:
        """The workers of all models together."""
        return (self.num_prefill + self.num_decode) * len(self.models)

    @property
    def num_ranks(self) -> int:
        """The ranks of all workers together."""
        prefill = self.num_prefill * self.worker.num_ranks("prefill")
        return (prefill + self.num_decode * self.worker.num_ranks("decode")) * len(self.models)

    @property
    def num_threads(self) -> int:
        """Threads of each worker."""
        return self.worker.num_threads or max(1, num_available_cores() // self.num_workers)

    @property
    def gpu_problem(self) -> str:
        """The reason why the workers cannot have these GPUs; empty when they can."""
        num_gpus = len(self.worker.gpus)
        if len(set(self.worker.gpus)) < num_gpus:
            return "one is named twice"
        if 0 < num_gpus < self.num_ranks:
            counts = f"{self.num_workers} workers need {self.num_ranks} GPUs"
            return f"{counts}; name as many, or take fewer workers (--prefill 1 --decode 1)"
        return ""

    @property
    def public_names(self) -> list[str]:
        """The names that clients may ask for: models, adapters and aliases."""
        aliases = (alias.partition("=")[0] for alias in self.aliases)
        return [*(model.name for model in self.models), *self.worker.adapters, *aliases]

    def num_replicas(self, service: str) -> int:
        return self.replicas.get(service, 1)

    def needed_bytes(self) -> int:
        """A rough lower bound of all workers' memory: each reports its own need when it loads."""
        # Float32 weights may be twice their file.
        factor = 2 if self.worker.dtype == "float32" else 1
        pool = 0 if self.worker.kv_memory == AUTO else parse_bytes(self.worker.kv_memory)
        each = [model.weight_bytes * factor + pool + PROCESS_BYTES for model in self.models]
        return sum(each) * self.num_workers // len(self.models)

    def worker_settings(self, role: str = "decode") -> dict[str, str]:
        """Settings that the workers of a role share, under the names of `baton.worker.settings`."""
        worker = self.worker
        memory_share = GPU_MEMORY_SHARE if worker.gpus else MEMORY_SHARE / self.num_workers
        has_experts = worker.is_expert_parallel and worker.num_ranks(role) > 1
        settings = {
            "dtype": worker.dtype,
            "threads": self.num_threads,
            "kv_memory": worker.kv_memory,
            "memory_share": round(memory_share, 4),
            "device": "cuda" if worker.gpus else None,
            "max_model_len": worker.max_model_len,
            "max_batch": worker.max_batch,
            "speculation_tokens": worker.speculation_tokens,
            "deterministic": "on" if worker.is_deterministic else None,
            "engine": worker.engine,
            "engine_python": worker.engine_python or None,
            "tensor_parallel": worker.num_ranks(role),
            "expert_parallel": "on" if has_experts else None,
            "drain_s": DRAIN_S,
        }
        return {name: str(value) for name, value in settings.items() if value is not None}

    def worker_libraries(self, gpus: Iterable[str]) -> dict[str, str]:
        """Variables that libraries of a worker with these GPUs read. Threads that wait for each
        other in a step sleep at once, unless the user decided about OpenMP's. vLLM's meet dozens
        of times in one, and look on for a while where each has a core."""
        has_cores = self.num_threads * self.num_workers <= num_available_cores()
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        if self.worker.engine != "vllm" or not has_cores:
            variables["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
        return {name: value for name, value in variables.items() if value}


@dataclass(frozen=True, slots=True)
class Plan:
    """The processes of one stack."""

    options: Options
    services: list[ServiceSpec]

    @property
    def base_url(self) -> str:
        """The API's URL at Envoy, or at the first gateway."""
        front = ENVOY if self.options.edge else "gateway"
        return f"http://{self.of_service(front)[0].endpoint}/v1"

    @property
    def web_url(self) -> str:
        """The URL of the local web page."""
        return f"http://{self.of_service(WEB)[0].endpoint}/"

    @property
    def metrics_url(self) -> str:
        """The URL of the first gateway's metrics."""
        return self.of_service("gateway")[0].metrics_url

    def of_service(self, name: str) -> list[ServiceSpec]:
        """All replicas of a service, in order."""
        return [service for service in self.services if is_replica(service.name, name)]


def is_replica(name: str, service: str) -> bool:
    """True for the name of a replica of `service`: `decode-2` is a replica of `decode`."""
    return name == service or name.startswith(f"{service}-")


def make(home: Home, options: Options) -> Plan:
    """Make the plan. Raises PortTaken, NoRedisServer and NoEnvoy."""
    if options.edge:
        require_envoy()
    if options.port and not is_free(options.port):
        raise PortTaken(
            f"port {options.port} is taken; try make up BATON_PORT=8081 (0 = a free one)"
        )
    num_services = 3 + sum(map(options.num_replicas, REPLICATED)) + options.num_workers
    num_services += 2 if options.edge else 0
    ports = free_ports(2 * num_services + options.num_replicas("quota") + 1)
    builder = Builder(home, f"http://{LOOPBACK}:{ports.pop()}", ports)
    # Its own port or a drawn one; the page's is the next, so that bookmarks stay true.
    options = replace(options, port=options.port or builder.next_port())
    web = f"{LOOPBACK}:{builder.port_after(options.port)}"
    _add_spans(builder, home, options)
    redis_url = _add_redis(builder, home)
    quota = _add_quota(builder, home, options, redis_url)
    gpus = iter(options.worker.gpus)
    workers = [
        endpoint
        for model in options.models
        for endpoint in _add_workers(builder, model, options, gpus)
    ]
    router = _add_router(builder, options, workers)
    tokenizer = _add_tokenizer(builder, options, router)
    dialled = {"quota": quota, "tokenizer": tokenizer, "router": router, "store_url": redis_url}
    _add_gateway(builder, home, options, dialled, f"http://{web}/#/requests/")
    if options.edge:
        _add_edge(builder, options)
    _add_web(builder, home, web)
    return Plan(options, builder.services)


def _add_spans(builder: Builder, home: Home, options: Options) -> None:
    endpoint = builder.spans_endpoint.removeprefix("http://")
    environment = {
        "BATON_SPANS_LISTEN": endpoint,
        "BATON_SPANS_STORE": str(home.spans),
        "BATON_SPANS_FORWARD_TO": options.spans_forward_to,
        # Senders of spans show no peer certificate; all of them are on this machine.
        **{f"{peer_tls.PREFIX}{name}_FILE": "" for name in ("CERT", "KEY", "CA")},
    }
    argv = [sys.executable, "-m", "baton.page.span_receiver"]
    builder.services.append(ServiceSpec("spans", argv, environment, _STOP_SPANS, endpoint))


def _add_web(builder: Builder, home: Home, endpoint: str) -> None:
    quota = next(spec for spec in builder.services if is_replica(spec.name, "quota"))
    environment = {
        "BATON_WEB_LISTEN": endpoint,
        "BATON_WEB_HOME": str(home.root),
        "BATON_WEB_QUOTA_API": quota.environment["BATON_QUOTA_API_LISTEN"],
    }
    argv = [sys.executable, "-m", "baton.localstack.web"]
    builder.services.append(ServiceSpec(WEB, argv, environment, _STOP_SPANS, endpoint))


def _add_redis(builder: Builder, home: Home) -> str:
    socket = home.socket_folder() / "redis.sock"
    argv = redis_server.server_command(redis_server.find_server(), home.redis, socket)
    url = f"unix://{socket}"
    builder.services.append(ServiceSpec("redis", argv, {}, _STOP_REDIS, url))
    return url


def _replica_names(service: str, options: Options) -> list[str]:
    """`quota` alone, or `quota-1`, `quota-2`."""
    count = options.num_replicas(service)
    return [service] if count == 1 else [f"{service}-{number + 1}" for number in range(count)]


def _add_quota(builder: Builder, home: Home, options: Options, redis_url: str) -> str:
    settings = {
        "prefix": "BATON_QUOTA_",
        "redis_url": redis_url,
        "registry_file": str(home.registry),
        "usage_dir": str(home.usage),
        "secret_file": str(home.secret),
        "api_token_file": str(home.admin_token),
        "drain_s": str(DRAIN_S),
    }
    names = _replica_names("quota", options)
    own = [settings | {"api_listen": f"{LOOPBACK}:{builder.next_port()}"} for _ in names]
    return ",".join(
        builder.add(name, "services.quota", _STOP_REST, each)
        for name, each in zip(names, own, strict=True)
    )


def _add_tokenizer(builder: Builder, options: Options, router: str) -> str:
    """Add the tokenizers, which have their models from the workers that routers know."""
    settings = {
        "prefix": "BATON_TOKENIZER_",
        "router": router,
        "drain_s": str(DRAIN_S),
    }
    names = _replica_names("tokenizer", options)
    return ",".join(
        builder.add(name, "services.tokenizer", _STOP_REST, dict(settings)) for name in names
    )


def _add_router(builder: Builder, options: Options, workers: list[str]) -> str:
    names = _replica_names("router", options)
    ports = [builder.next_port() for _ in names]
    all_routers = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    for name, port in zip(names, ports, strict=True):
        settings = {
            "prefix": "BATON_ROUTER_",
            "router_id": name,
            "workers": ",".join(workers),
            "peers": all_routers if len(names) > 1 else "",
            "disaggregate": options.disaggregate,
        }
        builder.add(name, "services.router", _STOP_ROUTER, settings, port=port)
    return all_routers


def _add_gateway(
    builder: Builder, home: Home, options: Options, dialled: Mapping[str, str], trace_url: str
) -> None:
    """Add the gateways. The first listens on the port of `options`, the others on free ports;
    behind Envoy all listen on free ports."""
    names = _replica_names("gateway", options)
    for number, name in enumerate(names):
        settings = {
            "prefix": "BATON_GATEWAY_",
            **dialled,
            "gateway_id": name,
            "secret_file": str(home.secret),
            "aliases": ",".join(options.aliases),
            # One folder per gateway; the first keeps the one that a single gateway has.
            "outbox_dir": str(home.outbox / name if number else home.outbox),
            "unready_s": str(UNREADY_S if len(names) > 1 else 0.0),
            "num_proxies": str(int(options.edge)),
            "trust_traces": "true",
            "cors_origins": ",".join(_LOOPBACK_ORIGINS),
            "trace_url": trace_url,
            "drain_s": str(DRAIN_S),
        }
        port = 0 if number or options.edge else options.port
        builder.add(name, "services.gateway", _STOP_GATEWAY, settings, port=port)


def _add_edge(builder: Builder, options: Options) -> None:
    ports = EdgePorts(options.port, builder.next_port(), builder.next_port(), builder.next_port())
    gateways = [spec.endpoint for spec in builder.services if is_replica(spec.name, "gateway")]
    builder.services += edge_services(
        ports, gateways, builder.spans_endpoint, DRAIN_S, _STOP_GATEWAY
    )


def _add_workers(
    builder: Builder, model: LocalModel, options: Options, gpus: Iterator[str]
) -> list[str]:
    """Add the workers of one model; each takes its `gpus`, where there are any."""
    suffix = f"-{model.name.replace('/', '-')}" if len(options.models) > 1 else ""
    endpoints = []
    for role, count in (("prefill", options.num_prefill), ("decode", options.num_decode)):
        for number in range(1, count + 1):
            name = f"{role}-{number}{suffix}"
            settings = {
                "prefix": "BATON_WORKER_",
                "worker_id": name,
                "model": str(model.folder),
                "model_name": model.name,
                "handoff_dir": str(builder.home.handoff),
                "state_dir": str(builder.home.workers),
                **options.worker_settings(role),
                **_adapter_settings(builder.home, options.worker.adapters),
            }
            module = f"services.{role}_worker"
            more = options.worker_libraries(islice(gpus, options.worker.num_ranks(role)))
            endpoints.append(builder.add(name, module, _STOP_WORKERS, settings, more=more))
    return endpoints


def _adapter_settings(home: Home, adapters: Mapping[str, Path]) -> dict[str, str]:
    if not adapters:
        return {}
    rank = largest_rank(adapters.values())
    return {"adapters": str(home.adapters), "adapter_rank": str(rank)}
