"""Submits whose answer is a vector, and the frames in which vectors travel."""

from baton.engine.protocol.messages import Finished, Started
from baton.engine.protocol.pooled_messages import Pooled
from baton.testing.virtual_clock import virtual
from baton.wire.pooling import Pooling
from baton.wire.v1 import worker_pb2
from services.decode_worker.step_merge import MAX_FRAME_VECTOR_BYTES, StepMerge
from tests.unit.decode_worker.conftest import worker
from tests.unit.decode_worker.test_attempt import finishes_of, submitted


@virtual
async def test_the_vector_of_a_prompt_is_in_its_finish_and_no_token_comes() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        w.deps.dispatcher.info.pooling = Pooling("last", 4)
        # A prefill worker that was picked nevertheless is not asked.
        add = await submitted(w, gateway, pools=True, prefill_endpoint="p1:1")
        assert (add.kind, add.pools) == ("local", True)
        w.core.tell(started=[Started(add.seq_id, [], 4, 3)])
        w.core.tell(
            pooled=[Pooled(add.seq_id, b"\0" * 16)], finished=[Finished(add.seq_id, "stop", 0)]
        )
        step = (await gateway.read()).step
        [side] = step.side
        assert not step.handles
        assert side.finish.vector == b"\0" * 16
        assert (side.finish.reason, side.finish.num_output_tokens) == ("stop", 0)
        assert side.prefill.num_cached_tokens == 4
        stages = [stage.name for stage in side.finish.stages]
        assert stages == ["prefill.queue", "prefill.compute", "decode"]


@virtual
async def test_an_engine_that_gives_no_vectors_is_not_asked_for_any() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        await gateway.submit(pools=True)
        refused = (await gateway.read()).refused
        assert refused.failure.reason == "not_an_embedding_model"


@virtual
async def test_a_submit_without_a_vector_has_none_in_its_finish() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        assert not add.pools
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        w.core.tell_token(add.seq_id, 11, finished=[Finished(add.seq_id, "stop", 1)])
        assert not (await finishes_of(gateway))[0].vector


def test_many_vectors_take_several_frames() -> None:
    merge = StepMerge()
    vector = bytes(MAX_FRAME_VECTOR_BYTES // 4)
    for handle in range(10):
        merge.add_finish((handle, 0), worker_pb2.Finish(reason="stop", vector=vector))
    frames = []
    while (frame := merge.take()) is not None:
        frames.append([side.handle for side in frame.step.side])
    assert frames == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
