"""Whether a local stack serves: what its gateway says, and which workers its router misses."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable

import grpc

from baton.runtime.grpc_channel import open_channel
from baton.wire.v1 import router_pb2, router_pb2_grpc

_MAX_ANSWER_BYTES = 4096
_TIMEOUT_S = 2.0


def gateway_reason(base_url: str) -> str:
    """Why the gateway is not ready, in its own words; empty when it is. Blocks briefly."""
    url = base_url.removesuffix("/v1") + "/readyz"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return _reasons(error.read(_MAX_ANSWER_BYTES))
    except OSError:
        return "the gateway does not answer"


async def stack_reason(base_url: str, router: str, worker_ids: Iterable[str]) -> str:
    """Why the whole stack is not ready, every worker included; empty when it is."""
    reason = await asyncio.to_thread(gateway_reason, base_url)
    missing = await _missing_workers(router, set(worker_ids))
    if missing:
        return f"{', '.join(sorted(missing))} not ready"
    return reason


async def _missing_workers(router: str, worker_ids: set[str]) -> set[str]:
    """Those of `worker_ids` that the router does not count as ready; all while it is away."""
    async with open_channel(router) as channel:
        watch = router_pb2_grpc.RouterStub(channel).WatchAdmission(
            router_pb2.WatchAdmissionRequest(), timeout=_TIMEOUT_S
        )
        try:
            view = await watch.read()
        except grpc.aio.AioRpcError:
            return worker_ids
        watch.cancel()
    if view is grpc.aio.EOF:
        return worker_ids
    workers = [worker for model in view.models for worker in model.workers]
    return worker_ids - {worker.worker_id for worker in workers if worker.ready}


def _reasons(body: bytes) -> str:
    """The reasons in an answer of /readyz; the body itself when it has none."""
    try:
        return ", ".join(json.loads(body)["reasons"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
