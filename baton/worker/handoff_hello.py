"""The hello of a handoff stream: both workers introduce themselves and check each other alike."""

from typing import TypeVar

from baton.wire import failures, kv_spec
from baton.wire.protocol import PROTOCOL_VERSION, agree
from baton.wire.v1 import handoff_pb2
from baton.worker.deps import WorkerDeps

Hello = TypeVar("Hello", handoff_pb2.DecodeHello, handoff_pb2.PrefillHello)


def make_hello(kind: type[Hello], deps: WorkerDeps) -> Hello:
    """Name this worker, its model and its KV layout; the caller adds the fields of its role."""
    return kind(
        protocol=PROTOCOL_VERSION,
        worker_id=deps.worker_id,
        boot_epoch=deps.boot_epoch,
        model_fp=deps.dispatcher.info.model_fp,
        kv_spec=kv_spec.to_wire(deps.blocks.spec),
        tp_size=1,
    )


def check_hello(
    hello: handoff_pb2.DecodeHello | handoff_pb2.PrefillHello, deps: WorkerDeps
) -> None:
    """Check that the peer's protocol, model and KV layout fit. Raises BatonError, which names the
    difference."""
    agree(hello.protocol, peer=hello.worker_id, own=deps.worker_id)
    model_fp = deps.dispatcher.info.model_fp
    if hello.model_fp != model_fp:
        raise failures.Incompatible(
            f"model_fp {hello.model_fp} of {hello.worker_id} != {model_fp} here"
        )
    difference = kv_spec.from_wire(hello.kv_spec).difference(deps.blocks.spec)
    if difference is not None:
        raise failures.Incompatible(f"kv_spec of {hello.worker_id}: {difference} here")
