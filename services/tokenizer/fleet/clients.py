"""The tokenizer's calls: it follows a router's view, and fetches files from workers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

import grpc

from baton.runtime import grpc_channel, logs
from baton.wire.failures import BatonError, Unavailable
from baton.wire.model_files import (
    MAX_MODEL_FILES_BYTES,
    BadModelFiles,
    ModelFiles,
    decode_model_files,
)
from baton.wire.v1 import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.tokenizer.fleet.announced import Announced, RouterView

# A router that says nothing for so long is lost; it speaks twice a second at least.
SILENCE_S = 2.0
# A worker may be so long about the next part of its files, and about all of them.
PART_S = 5.0
FETCH_S = 60.0
# Digests and names beside the files.
MAX_ENCODED_BYTES = MAX_MODEL_FILES_BYTES + 2 * 1024 * 1024
_PAUSE_S = 0.2

_log = logs.get("tokenizer")


async def follow_routers(
    endpoints: Sequence[str],
    random: Random,
    on_models: Callable[[Mapping[str, Announced]], None],
) -> None:
    """Follow the view of one router after the other, until cancelled; the last view stays while
    none answers."""
    in_order = random.sample(endpoints, len(endpoints))
    while True:
        for endpoint in in_order:
            try:
                await _follow_router(endpoint, on_models)
            except BatonError as error:
                _log.info("router_lost", router=endpoint, reason=error.reason)
            await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.5))


async def _follow_router(
    endpoint: str, on_models: Callable[[Mapping[str, Announced]], None]
) -> None:
    """Follow one router's view until it is lost. Raises BatonError."""
    view, known = RouterView(), None
    async with grpc_channel.open_channel(endpoint, "router") as channel:
        call = router_pb2_grpc.RouterStub(channel).WatchAdmission(
            router_pb2.WatchAdmissionRequest(takes_deltas=True), metadata=grpc_channel.outgoing()
        )
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    raise Unavailable("the router ended its watch")
                view.take_in(message)
                if (announced := view.announced()) != known:
                    known = announced
                    on_models(announced)
        except TimeoutError:
            raise Unavailable("the router is silent") from None
        except grpc.aio.AioRpcError as error:
            raise grpc_channel.failure_of(error) from error
        finally:
            call.cancel()


async def fetch_files(endpoint: str, model_fp: str) -> ModelFiles:
    """The files of a model, from a worker. Raises BatonError, BadModelFiles when they are not those
    of the fingerprint."""
    data = bytearray()
    async with grpc_channel.open_channel(endpoint, "worker") as channel:
        call = worker_pb2_grpc.WorkerFilesStub(channel).GetModelFiles(
            worker_pb2.GetModelFilesRequest(model_fp=model_fp),
            timeout=FETCH_S,
            metadata=grpc_channel.outgoing(),
        )
        try:
            while True:
                async with asyncio.timeout(PART_S):
                    part = await call.read()
                if part is grpc.aio.EOF:
                    break
                data += part.data
                if max(len(data), part.num_bytes) > MAX_ENCODED_BYTES:
                    raise BadModelFiles(f"more than {MAX_ENCODED_BYTES} bytes")
        except TimeoutError:
            raise Unavailable(f"the worker is silent for {PART_S:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise grpc_channel.failure_of(error) from error
        finally:
            call.cancel()
    return await asyncio.to_thread(decode_model_files, bytes(data), model_fp)
