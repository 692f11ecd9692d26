"""Readiness of a local stack: of each gateway, and of each replica behind it."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.localstack.edge import ENVOY
from baton.localstack.plan import WORKER_PREFIXES, is_replica
from baton.runtime.grpc_channel import open_channel
from baton.wire.v1 import router_pb2, router_pb2_grpc

_MAX_ANSWER_BYTES = 4096
_TIMEOUT_S = 2.0


async def stack_reason(endpoints: Mapping[str, str]) -> str | None:
    """The reason why the stack, with every replica and worker, is not ready; None when it is.

    `endpoints` are those of the stack's processes, by name. Processes that serve no requests are
    left aside.
    """
    workers = {name for name in endpoints if name.startswith(WORKER_PREFIXES)}
    checks = [
        _http_reason(name, f"http://{endpoint}/readyz")
        for name, endpoint in endpoints.items()
        if is_replica(name, "gateway")
    ]
    if ENVOY in endpoints:
        # Answered by a gateway: Envoy knows one, and it is ready.
        checks.append(_http_reason(ENVOY, f"http://{endpoints[ENVOY]}/healthz"))
    checks += [
        _router_reason(name, endpoint, workers)
        for name, endpoint in endpoints.items()
        if is_replica(name, "router")
    ]
    checks += [
        _health_reason(name, endpoint)
        for name, endpoint in endpoints.items()
        if is_replica(name, "quota") or is_replica(name, "tokenizer")
    ]
    reasons = await asyncio.gather(*checks)
    return ", ".join(dict.fromkeys(reason for reason in reasons if reason)) or None


async def _http_reason(name: str, url: str) -> str | None:
    return await asyncio.to_thread(_ask, name, url)


def _ask(name: str, url: str) -> str | None:
    """The reason that the process itself gives. Blocks for 2 s at most."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        # A busy process may take longer than that between its status and its reasons, too.
        with error, suppress(OSError):
            return _reasons(error.read(_MAX_ANSWER_BYTES))
    except OSError:
        pass
    return f"{name} does not answer"


async def _health_reason(name: str, endpoint: str) -> str | None:
    async with open_channel(endpoint) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return f"{name} not ready"
    serving = health_pb2.HealthCheckResponse.SERVING
    return None if answer.status == serving else f"{name} not ready"


async def _router_reason(name: str, endpoint: str, worker_ids: set[str]) -> str | None:
    """Names the workers that this router does not count as ready; itself while it is away."""
    view = await _view(endpoint)
    if view is None:
        return f"{name} not ready"
    workers = [worker for model in view.models for worker in model.workers]
    missing = worker_ids - {worker.worker_id for worker in workers if worker.ready}
    return f"{', '.join(sorted(missing))} not ready" if missing else None


async def _view(endpoint: str) -> router_pb2.WatchAdmissionResponse | None:
    """What a router knows of the fleet; None while it is away."""
    async with open_channel(endpoint) as channel:
        watch = router_pb2_grpc.RouterStub(channel).WatchAdmission(
            router_pb2.WatchAdmissionRequest(), timeout=_TIMEOUT_S
        )
        try:
            view = await watch.read()
        except grpc.aio.AioRpcError:
            return None
        watch.cancel()
    return None if view is grpc.aio.EOF else view


async def served_models(endpoints: Mapping[str, str]) -> list[router_pb2.ModelState]:
    """The models with ready workers, as the first router that answers knows them."""
    for name, endpoint in endpoints.items():
        if is_replica(name, "router") and (view := await _view(endpoint)) is not None:
            models = sorted(view.models, key=lambda model: model.name)
            return [model for model in models if any(worker.ready for worker in model.workers)]
    return []


def _reasons(body: bytes) -> str:
    """The reasons in an answer of /readyz; the body itself when it has none."""
    try:
        return ", ".join(json.loads(body)["reasons"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
