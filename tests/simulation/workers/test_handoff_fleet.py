"""Prefill front, decode front and a gateway over in-memory streams, on virtual time."""

import asyncio

import pytest

from baton.handoff.negotiation import Offer, Transports
from baton.handoff.transport import num_payload_bytes
from baton.testing.engine_driver import encode_tokens
from baton.testing.virtual_clock import virtual
from baton.wire.v1 import handoff_pb2, worker_pb2
from baton.worker import prompt as prompt_module
from services.decode_worker import prefill_link
from tests.simulation.workers.fleet import fleet

pytestmark = pytest.mark.usefixtures("by_each_transport")

PROMPT = list(range(100, 150))  # 50 tokens: three full blocks and a partial one


def prompt_of(num_tokens: int, first: int = 100) -> list[int]:
    return [first + i for i in range(num_tokens)]


@virtual
async def test_a_handed_over_request_answers_as_a_lone_local_run() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert answer.finishes[0].reason == "length"
        assert answer.finishes[0].num_output_tokens == 8
        assert [b.num_blocks for b in f.kinds("blocks")] == [3, 1]
        await f.settle(1)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 64, 65, 200])
@virtual
async def test_prompts_of_any_length_travel_through_the_prefill_worker(num_tokens: int) -> None:
    async with fleet() as f:
        prompt = prompt_of(num_tokens)

        answer = await (await f.gateway.submit(prompt, temperature=0.8, seed=7)).over()

        assert answer.tokens[0] == f.lone_run(prompt, temperature=0.8, seed=7)
        blocks_of_layer_0 = sum(b.num_blocks for b in f.kinds("blocks") if b.layer == 0)
        assert blocks_of_layer_0 == -(-num_tokens // 16)
        await f.settle(1)


@virtual
async def test_layers_travel_while_the_step_computes_and_the_last_block_after_it() -> None:
    async with fleet(prefill_sizes={"min_group_bytes": 1}) as f:
        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        frames = [frame.WhichOneof("frame") for frame in f.frames]
        places = [(b.layer, b.num_layers, b.first_block) for b in f.kinds("blocks")]
        assert places == [(0, 0, 0), (1, 0, 0), (0, 2, 3)]
        first = frames.index("first_tokens")
        assert frames[:first].count("blocks") == 2
        await f.settle(1)


@virtual
async def test_a_local_request_never_touches_the_prefill_worker() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, prefill_endpoint="")).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert f.frames == []
        assert [s.name for s in answer.finishes[0].stages] == [
            "prefill.queue",
            "prefill.compute",
            "decode",
        ]
        await f.settle(1)


@virtual
async def test_many_requests_share_one_handoff_stream_and_all_get_their_own_answer() -> None:
    async with fleet(decode_sizes={"num_blocks": 256}, prefill_sizes={"num_blocks": 256}) as f:
        prompts = [prompt_of(20 + 7 * i, first=i) for i in range(12)]

        answers = [await f.gateway.submit(p, max_tokens=5 + i) for i, p in enumerate(prompts)]

        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            assert (await answer.over()).tokens[0] == f.lone_run(prompt, 5 + i)
        assert len(f.handoff_streams) == 1
        await f.settle(1)


@virtual
async def test_every_token_brings_its_logprobs_also_the_prefill_workers_first() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, num_logprobs=2, num_choices=2)).over()

        for choice in range(2):
            told = answer.logprobs[choice]
            assert [one.index for one in told] == list(range(8))
            assert [list(one.top_ids)[:1] for one in told] == [[t] for t in answer.tokens[choice]]
        assert len(f.kinds("prefill")) == 1
        await f.settle(1)


@virtual
async def test_a_judged_prompt_is_prefilled_here_and_judged_once_for_all_choices() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, num_prompt_logprobs=1, num_choices=2)).over()

        assert [one.index for one in answer.judged] == list(range(1, 50))
        assert answer.tokens == {choice: f.lone_run(PROMPT, choice=choice) for choice in range(2)}
        assert f.frames == []
        await f.settle(1)


@virtual
async def test_blocks_that_decode_has_do_not_travel_again() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(prompt_of(40))).over()
        f.frames.clear()

        answer = await (await f.gateway.submit(prompt_of(60))).over()

        assert answer.tokens[0] == f.lone_run(prompt_of(60))
        assert f.kinds("prefill")[0].first_missing_block == 2
        assert [(b.first_block, b.num_layers) for b in f.kinds("blocks")] == [(2, 2), (3, 2)]
        assert answer.prefills[0].num_cached_tokens == 32
        assert answer.prefills[0].num_blocks_received == 2
        await f.settle(1)


@virtual
async def test_a_whole_cached_prompt_brings_only_the_first_token() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(prompt_of(48))).over()
        f.frames.clear()

        answer = await (await f.gateway.submit(prompt_of(48))).over()

        assert answer.tokens[0] == f.lone_run(prompt_of(48))
        assert f.kinds("blocks") == []
        assert f.kinds("commit")[0].num_blocks == 0
        await f.settle(1)


@virtual
async def test_blocks_of_earlier_chunks_leave_while_later_chunks_are_computed() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(prompt_of(200))).over()

        assert answer.tokens[0] == f.lone_run(prompt_of(200))
        kinds = [frame.WhichOneof("frame") for frame in f.frames]
        assert kinds.index("blocks") < kinds.index("first_tokens")
        await f.settle(1)


@virtual
async def test_the_first_token_overtakes_its_blocks() -> None:
    async with fleet() as f:
        f.to_decode = lambda frame: [] if frame.HasField("blocks") else [frame]
        answer = await f.gateway.submit(PROMPT)

        await answer.first_token()

        assert answer.tokens[0] == f.lone_run(PROMPT)[:1]
        assert answer.prefills[0].num_blocks_received == 4
        await f.gateway.cancel("request-1")
        await f.settle(1)


@virtual
async def test_a_first_token_that_is_the_last_needs_no_blocks() -> None:
    async with fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, max_tokens=1)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT, 1)
        assert answer.finishes[0].reason == "length"
        assert f.kinds("commit") == []
        await f.settle(1)


@virtual
async def test_emitted_tokens_of_an_earlier_attempt_are_prefilled_and_not_sampled_again() -> None:
    async with fleet() as f:
        whole = f.lone_run(PROMPT, 10)
        emitted = worker_pb2.EmittedTokens(choice=0, token_ids=encode_tokens(whole[:4]))

        answer = await (await f.gateway.submit(PROMPT, max_tokens=10, emitted=[emitted])).over()

        assert answer.tokens[0] == whole[4:]
        assert answer.finishes[0].num_output_tokens == 10
        await f.settle(1)


@virtual
async def test_a_prompt_too_long_for_a_frame_continues_in_parts() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_module, "MAX_PART_BYTES", 64)
        async with fleet() as f:
            answer = await (await f.gateway.submit(PROMPT, part_tokens=13)).over()

            assert answer.tokens[0] == f.lone_run(PROMPT)
            assert len(f.kinds("prefill_part")) == 3
            await f.settle(1)


@pytest.mark.parametrize("factor", [1, 6])
@virtual
async def test_bytes_in_flight_exceed_the_credit_window_by_one_frame_at_most(factor: int) -> None:
    """So that none is too large for it. A frame has four quarters."""
    with pytest.MonkeyPatch.context() as patch:
        frame_bytes = 4 * 2 * 16 * 24
        window = frame_bytes * factor // 4
        patch.setattr(prefill_link, "CREDIT_WINDOW_BYTES", window)
        async with fleet(decode_sizes={"num_blocks": 256}) as f:
            answers = [await f.gateway.submit(prompt_of(60, first=i * 60)) for i in range(4)]

            for i, answer in enumerate(answers):
                alone = f.lone_run(prompt_of(60, first=i * 60))
                assert (await answer.over()).tokens[0] == alone
            in_flight = most = 0
            for frame in f.frames:
                in_flight += num_payload_bytes(frame.blocks) if hasattr(frame, "blocks") else 0
                most = max(most, in_flight)
                if frame.WhichOneof("frame") == "credit":
                    in_flight -= frame.credit.bytes
            assert 0 < most < window + frame_bytes
            await f.settle(1)


@virtual
async def test_a_decode_worker_that_knows_no_stripes_gets_a_layer_per_frame() -> None:
    offer = Transports.offer

    def without(self: Transports, hello: handoff_pb2.DecodeHello, **options: bool) -> Offer:
        offered = offer(self, hello, **options)
        hello.takes_stripes = False
        return offered

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transports, "offer", without)
        async with fleet() as f:
            answer = await (await f.gateway.submit(PROMPT)).over()

            assert answer.tokens[0] == f.lone_run(PROMPT)
            assert [(b.layer, b.num_layers) for b in f.kinds("blocks")] == [(0, 0), (1, 0)] * 2
            await f.settle(1)


@virtual
async def test_a_sequence_without_credit_waits_for_more() -> None:
    async with fleet() as f:
        answer = await f.gateway.submit(PROMPT, initial_credit_tokens=3)
        await asyncio.sleep(2)
        assert answer.tokens[0] == f.lone_run(PROMPT)[:3]

        await f.gateway.credit(1, 0, 8)

        assert (await answer.over()).tokens[0] == f.lone_run(PROMPT)
        await f.settle(1)


@virtual
async def test_stages_cut_the_time_from_submit_to_finish_without_gap() -> None:
    async with fleet() as f:
        loop = asyncio.get_running_loop()
        start_s = loop.time()

        answer = await (await f.gateway.submit(PROMPT)).over()

        wall_s = loop.time() - start_s
        stages = {s.name: s.duration_us / 1e6 for s in answer.finishes[0].stages}
        assert list(stages) == ["admit", "prefill.queue", "prefill.compute", "handoff", "decode"]
        assert sum(stages.values()) == pytest.approx(wall_s, abs=1e-4)
        assert stages["prefill.compute"] == pytest.approx(0.01, abs=1e-4)
        until_first = [s.name for s in answer.prefills[0].stages]
        assert until_first == ["admit", "prefill.queue", "prefill.compute", "handoff"]
        await f.settle(1)


@virtual
async def test_an_idle_handoff_stream_is_closed_and_dialled_again() -> None:
    async with fleet() as f:
        await (await f.gateway.submit(PROMPT)).over()
        await asyncio.sleep(prefill_link.IDLE_CLOSE_S + 5)
        assert len(f.kinds("bye")) == 1

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert len(f.handoff_streams) == 2
        await f.settle(1)
