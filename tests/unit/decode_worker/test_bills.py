"""What an attempt cost is told with its end, whatever that is."""

import asyncio

from baton.engine.protocol.messages import Admitted, Finished, SequenceRefused, Started
from baton.testing.virtual_clock import virtual
from baton.wire.v1.failure_pb2 import EngineTime
from tests.unit.decode_worker.conftest import Worker, worker
from tests.unit.decode_worker.test_attempt import finishes_of, seq_ids, step_of, submitted


def tell_step(w: Worker, *seq_ids: int, spent_us: int = 1000, prefills: int = 0) -> None:
    """A step of 1 ms of each sequence, and 0.5 ms of nothing; the first ones were prefills."""
    w.core.tell(
        busy_us=spent_us * len(seq_ids) + 500,
        spent_seq_ids=list(seq_ids),
        spent_us=[spent_us] * len(seq_ids),
        held_block_us=[spent_us * 3] * len(seq_ids),
        prefills=[(index, spent_us // 10) for index in range(prefills)],
    )


@virtual
async def test_each_choice_is_billed_with_its_finish() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, sampling={"num_choices": 2})
        first, second = seq_ids(add)
        w.core.tell(started=[Started(first, [], 0, 3)])
        tell_step(w, first, prefills=1)
        tell_step(w, first, second)
        w.core.tell_token(first, 11, finished=[Finished(first, "length", 1)])
        tell_step(w, second)
        w.core.tell_token(second, 12, finished=[Finished(second, "stop", 1)])
        finishes = await finishes_of(gateway, 2)
        row_bytes = w.deps.blocks.spec.row_bytes
        assert finishes[0].engine == EngineTime(
            prefill_us=1000, decode_us=1000, kv_byte_ms=6 * row_bytes, preempted_us=100
        )
        assert finishes[1].engine == EngineTime(decode_us=2000, kv_byte_ms=6 * row_bytes)
        assert w.deps.dispatcher.times.unbilled_us == 3 * 500


@virtual
async def test_a_cancel_is_billed_at_once_and_the_step_that_runs_is_on_no_bill() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        tell_step(w, add.seq_id, prefills=1)
        await gateway.say(cancel={"request_id": "r1", "epoch": 1})
        [finish] = (await finishes_of(gateway)).values()
        assert (finish.reason, finish.engine.prefill_us) == ("cancelled", 1000)
        tell_step(w, add.seq_id)
        await asyncio.sleep(0.01)
        assert w.deps.dispatcher.times.unbilled_us == 1000 + 2 * 500


@virtual
async def test_an_attempt_that_fails_is_billed_with_its_failure() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        tell_step(w, add.seq_id, prefills=1)
        w.core.tell_token(add.seq_id, 11)
        await step_of(gateway)
        w.core.tell(finished=[Finished(add.seq_id, "deadline_exceeded", 1)])
        [finish] = (await finishes_of(gateway)).values()
        assert finish.HasField("failure")
        assert finish.engine.prefill_us == 1000


@virtual
async def test_a_refusal_says_what_was_spent_nevertheless() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        tell_step(w, add.seq_id, prefills=1)
        w.core.tell(refused=[SequenceRefused(add.seq_id, "no_room", "no room")])
        refused = (await gateway.read()).refused
        assert refused.engine.prefill_us == 1000


@virtual
async def test_what_was_spent_for_a_gateway_that_left_is_on_no_bill() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway)
        w.core.tell(started=[Started(add.seq_id, [], 0, 3)])
        tell_step(w, add.seq_id, prefills=1)
        await asyncio.sleep(0.01)
        times = w.deps.dispatcher.times
        assert times.unbilled_us == 500
        await gateway.say(bye={})
        assert await gateway.has_ended()
        assert times.unbilled_us == times.busy_us == 1500


@virtual
async def test_a_prompt_that_was_to_come_from_elsewhere_costs_what_was_told() -> None:
    async with worker() as w:
        gateway = await w.gateway()
        add = await submitted(w, gateway, prefill_endpoint="nowhere")
        w.core.tell(admitted=[Admitted(add.seq_id, 0)])
        refused = (await gateway.read()).refused
        assert refused.engine == EngineTime()
