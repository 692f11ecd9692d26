"""A stream whose worker fails migrates: no gap, no repeat, one usage record."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from baton.runtime import telemetry
from baton.wire.failures import BatonError, DeadlineExceeded, InternalFailure, Unavailable, to_wire
from baton.wire.v1 import quota_pb2, worker_pb2
from services.gateway.request.limits import Limits
from services.gateway.request.picks import MAX_PLANNED_MIGRATIONS
from services.gateway.workers import outgoing_frames
from services.gateway.workers.migration import MAX_JITTER_S, MAX_MIGRATIONS
from services.gateway.workers.outgoing_frames import (
    MAX_EMITTED_BYTES,
    PART_TOKENS,
    OutgoingFrames,
    submit_frames,
)
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate

TEXT = "The bäton is passed on 😀, and never dropped. " * 3
AFTER_TOKENS = pytest.mark.parametrize("num_tokens", [1, 2, 5, 6, 24, 60, 130])


def moves(reason: str) -> float:
    return REGISTRY.get_sample_value("baton_gateway_moves_total", {"reason": reason}) or 0.0


def die(fleet: Fleet, name: str) -> None:
    """Let the worker's process be gone, and its port closed."""
    fleet.unreachable.add(name)
    fleet.workers[name].cut()


async def moved(fleet: Fleet, num_tokens: int, **fields: Any) -> RecordingSink:
    """Ask, and let the first worker die when it has sent about so many tokens of each choice."""
    task = fleet.tasks.create_task(fleet.chat(**fields))
    while max(fleet.worker.num_written.values(), default=0) < num_tokens:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.002)
    die(fleet, "w1")
    return await task


def emitted(submit: worker_pb2.Submit) -> dict[int, bytes]:
    return {each.choice: bytes(each.token_ids[::4]) for each in submit.emitted}


def say_everywhere(fleet: Fleet, *texts: str) -> None:
    for worker in fleet.workers.values():
        worker.texts = list(texts)


@AFTER_TOKENS
def test_the_client_sees_a_pause_and_nothing_else(num_tokens: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        before = moves("worker_lost")
        sink = await moved(fleet, num_tokens, max_tokens=300)
        assert (sink.text(), sink.reason()) == (TEXT, "stop")
        (second,) = fleet.workers["w2"].submits
        assert second.epoch == 2
        assert TEXT.encode().startswith(emitted(second)[0])
        assert abs(len(emitted(second)[0]) - num_tokens) <= 1
        assert list(fleet.router.picked[1].exclude_worker_ids) == ["w1"]
        assert moves("worker_lost") == before + 1

    simulate(scenario)


def test_a_move_links_the_attempt_that_was_lost_and_the_one_that_goes_on() -> None:
    exporter = InMemorySpanExporter()
    telemetry.setup("gateway", SimpleSpanProcessor(exporter))

    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        await moved(fleet, 3, max_tokens=300)

    simulate(scenario)
    telemetry.setup("gateway")
    spans = exporter.get_finished_spans()
    lost, chosen = (span for span in spans if span.name == "attempt")
    (move,) = (span for span in spans if span.name == "move")
    assert [(link.context.span_id, link.attributes) for link in move.links] == [
        (lost.context.span_id, {"baton.link": "lost"}),
        (chosen.context.span_id, {"baton.link": "chosen"}),
    ]
    assert chosen.parent is not None
    assert chosen.parent.span_id == move.context.span_id
    picks = [span.parent.span_id for span in spans if span.name == "pick" and span.parent]
    assert picks[1] == move.context.span_id


def test_the_trace_of_a_moved_request_is_kept_without_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    exporter = InMemorySpanExporter()
    telemetry.setup("gateway", SimpleSpanProcessor(exporter))

    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        await moved(fleet, 3, max_tokens=300)
        # The workers were told the ids under which the gateway's span is found.
        (span,) = exporter.get_finished_spans()
        assert span.attributes is not None
        assert (span.attributes["baton.kept"], span.attributes["baton.num_attempts"]) == (
            "moved",
            2,
        )
        (second,) = fleet.workers["w2"].submits
        assert second.traceparent.split("-")[1] == f"{span.context.trace_id:032x}"

    simulate(scenario, limits=Limits(slow_first_token_s=0))
    monkeypatch.undo()
    telemetry.setup("gateway")


@AFTER_TOKENS
def test_a_request_that_moved_is_billed_as_if_it_had_not(num_tokens: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        fleet.workers["w1"].num_cached, fleet.workers["w2"].num_cached = 2, 7
        await moved(fleet, num_tokens)
        record = fleet.record
        assert record.num_output_tokens == len(TEXT.encode()) + 1
        assert record.num_wasted_tokens == 0
        assert record.num_cached_tokens == 2
        assert record.num_attempts == 2
        stages = {stage.name: stage.duration_us for stage in record.stages}
        assert sum(stages.values()) == pytest.approx(record.wall_us, abs=len(stages))
        assert 0.05e6 < stages["move"] < 1e6
        assert len(fleet.quota.reserved) == 1
        assert len(fleet.quota.settled) == 1

    simulate(scenario)


def test_a_choice_that_ended_is_not_run_again() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "short", TEXT, "not so short a text")
        sink = await moved(fleet, 15, n=3, max_tokens=300)
        assert [sink.text(choice) for choice in range(3)] == fleet.workers["w1"].texts
        (second,) = fleet.workers["w2"].submits
        assert list(second.ended_choices) == [0]
        assert set(emitted(second)) == {1, 2}
        assert second.sampling.num_choices == 3
        assert fleet.router.picked[1].num_choices == 2
        told = fleet.router.picked[0].num_prompt_tokens + max(map(len, emitted(second).values()))
        assert fleet.router.picked[1].num_prompt_tokens == told
        assert fleet.record.num_output_tokens == 6 + len(TEXT.encode()) + 1 + 20

    simulate(scenario)


@pytest.mark.parametrize("num_tokens", range(1, 12))
def test_a_stop_string_is_found_across_the_cut(num_tokens: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "before|STOP|after it")
        sink = await moved(fleet, num_tokens, stop="|STOP|")
        assert (sink.text(), sink.reason()) == ("before", "stop")
        assert fleet.record.num_output_tokens == 12

    simulate(scenario)


@AFTER_TOKENS
def test_logprobs_go_on_across_the_cut(num_tokens: int) -> None:
    async def alone(fleet: Fleet) -> list[Any]:
        say_everywhere(fleet, TEXT)
        return (await fleet.chat(logprobs=True, top_logprobs=2)).logprobs()

    async def scenario(fleet: Fleet) -> list[Any]:
        say_everywhere(fleet, TEXT)
        return (await moved(fleet, num_tokens, logprobs=True, top_logprobs=2)).logprobs()

    assert simulate(scenario) == simulate(alone)


def test_an_echo_with_logprobs_comes_once_with_each_logprob_once() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "x" * 99)
        task = fleet.tasks.create_task(fleet.complete(prompt="hello", echo=True, logprobs=1))
        await asyncio.sleep(0.5)
        die(fleet, "w1")
        sink = await task
        assert sink.text() == "hello" + "x" * 16
        (first,), (second,) = fleet.workers["w1"].submits, fleet.workers["w2"].submits
        assert (first.sampling.num_prompt_logprobs, second.sampling.num_prompt_logprobs) == (1, -1)
        # The logits of the prompt are not needed any more: it may be handed over.
        assert [pick.local_prefill for pick in fleet.router.picked] == [True, False]

    simulate(scenario, prepare=lambda fleet: [setattr(w, "step_s", 0.05) for w in
                                              fleet.workers.values()])  # fmt: skip


def test_prompt_logprobs_that_were_half_there_are_computed_anew() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "abc")
        fleet.workers["w1"].takes_half_of_the_prompt_logprobs = True
        task = fleet.tasks.create_task(fleet.complete(prompt="hello", echo=True, logprobs=1))
        await asyncio.sleep(1)
        die(fleet, "w1")
        sink = await task
        assert sink.text() == "helloabc"
        # Five of the prompt, three of the answer, and that of its end.
        assert len(sink.logprobs()) == 9

    simulate(scenario)


def test_a_search_begins_anew_and_has_its_whole_time_again() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "best", "second")
        fleet.workers["w1"].prefill_s = 1000
        task = fleet.tasks.create_task(fleet.chat(use_beam_search=True, n=2))
        await asyncio.sleep(40)
        die(fleet, "w1")
        sink = await task
        assert [sink.text(0), sink.text(1)] == ["best", "second"]

    simulate(scenario)


@pytest.mark.parametrize("reason", ["handoff_failed", "worker_lost", "draining", "no_room"])
def test_a_failed_finish_moves_the_stream(reason: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(0.3)
        await fail(fleet, "w1", Unavailable("it is over", reason=reason))
        sink = await task
        assert sink.text() == TEXT
        avoided = "p1" if reason == "handoff_failed" else "w1"
        assert list(fleet.router.picked[1].exclude_worker_ids) == [avoided]
        assert fleet.record.num_attempts == 2

    def prepare(fleet: Fleet) -> None:
        fleet.router.workers = ["w1", "w2"]

    simulate(scenario, prepare=prepare)


async def fail(fleet: Fleet, name: str, error: BatonError) -> None:
    """The worker's newest attempt fails."""
    worker = fleet.workers[name]
    submit, step = worker.submits[-1], worker_pb2.Step()
    side = step.side.add(handle=submit.handle, choice=0)
    side.finish.failure.CopyFrom(to_wire(error))
    await worker.say(worker_pb2.WorkerFrame(step=step))
    worker.choices.cancel(submit.handle, range(submit.sampling.num_choices))


@pytest.mark.parametrize(
    "error",
    [DeadlineExceeded("too late"), InternalFailure("a bug"), Unavailable("", reason="overloaded")],
)
def test_other_failures_end_the_stream(error: BatonError) -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        task = fleet.tasks.create_task(outcome(fleet))
        await asyncio.sleep(0.3)
        await fail(fleet, "w1", error)
        failure = await task
        assert failure is not None
        assert failure.reason == error.reason
        assert len(fleet.router.picked) == 1

    simulate(scenario)


async def outcome(fleet: Fleet, **fields: Any) -> BatonError | None:
    try:
        await fleet.chat(**fields)
    except BatonError as error:
        return error
    return None


def test_the_third_loss_fails_the_request_and_bills_what_was_sent() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        sink = RecordingSink()
        task = fleet.tasks.create_task(lost(fleet, sink))
        for name in ("w1", "w2", "w3"):
            while not fleet.workers[name].submits:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            die(fleet, name)
        await task
        assert TEXT.startswith(sink.text())
        assert fleet.record.num_output_tokens == len(sink.text().encode()) > 30
        assert fleet.record.finish_reason == "worker_lost"
        assert fleet.record.num_attempts == 3
        assert sink.usage is None

    async def lost(fleet: Fleet, sink: RecordingSink) -> None:
        with pytest.raises(Unavailable):
            await fleet.chat(sink)

    simulate(scenario)


def test_moves_off_draining_workers_are_no_failures_but_have_an_end() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.ignores_exclusion = True
        fleet.worker.texts = ["x" * 500]
        task = fleet.tasks.create_task(outcome(fleet, max_tokens=400))
        for number in range(MAX_PLANNED_MIGRATIONS + 1):
            while len(fleet.worker.submits) <= number:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            await fail(fleet, "w1", Unavailable("leaving", reason="draining"))
        error = await task
        assert error is not None
        assert error.reason == "draining"
        assert fleet.record.num_attempts == MAX_PLANNED_MIGRATIONS + 1

    simulate(scenario)


@pytest.mark.parametrize("back_after_s", [3, 40])
def test_a_stream_waits_for_its_only_worker_until_its_next_token_is_due(back_after_s: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        fleet.router.workers = ["w1"]
        task = fleet.tasks.create_task(outcome(fleet))
        await asyncio.sleep(0.3)
        die(fleet, "w1")
        await asyncio.sleep(back_after_s)
        fleet.router.workers = ["w1", "w2"]
        error = await task
        if back_after_s > 20:
            assert error is not None
            assert error.reason == "no_worker"
            assert len(fleet.router.picked) < 50
        else:
            assert error is None
            assert fleet.record.num_output_tokens == len(TEXT.encode()) + 1

    simulate(scenario)


def test_the_next_token_after_a_move_is_due_like_any_other() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, TEXT)
        fleet.workers["w2"].prefill_s = 1000
        task = fleet.tasks.create_task(outcome(fleet))
        await asyncio.sleep(0.3)
        die(fleet, "w1")
        error = await task
        assert isinstance(error, DeadlineExceeded)
        assert fleet.clock.now() == pytest.approx(0.3 + 7, abs=1)

    simulate(scenario, limits=Limits(token_gap_s=7))


def test_a_move_waits_for_quota_to_pay_for_its_next_token() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "x" * 700)
        granted = {"tokens": 64}
        fleet.quota.on_renewal = lambda r: (granted["tokens"], quota_pb2.LeaseState.STATE_HELD)
        task = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(1.5)
        die(fleet, "w1")
        await asyncio.sleep(2)
        assert not fleet.workers["w2"].submits
        granted["tokens"] = 1000
        sink = await task
        assert len(sink.text()) == 700

    simulate(scenario, limits=Limits(default_output_reservation=64))


def test_a_stream_that_lost_only_its_end_gets_it_elsewhere() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "x" * 50)
        fleet.workers["w1"].keeps_finish = True
        task = fleet.tasks.create_task(fleet.chat(max_tokens=50))
        await asyncio.sleep(2)
        die(fleet, "w1")
        sink = await task
        assert (sink.text(), sink.reason()) == ("x" * 50, "length")
        assert len(emitted(fleet.workers["w2"].submits[0])[0]) == 50

    simulate(scenario)


def test_few_requests_look_for_a_worker_at_once_and_none_at_the_same_moment() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "x" * 40)
        fleet.workers["w2"].prefill_s = 1.0
        tasks = [fleet.tasks.create_task(fleet.chat(max_tokens=30)) for _ in range(50)]
        await asyncio.sleep(0.25)
        num_before = len(fleet.router.picked)
        die(fleet, "w1")
        most, num_picked = 0, set()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.005)
            num_picked.add(len(fleet.router.picked) - num_before)
            most = max(most, fleet.workers["w2"].num_prefilling)
        assert most == MAX_MIGRATIONS
        assert len(num_picked) > 10, f"spread over less than {MAX_JITTER_S} s"
        assert all(len(task.result().text()) == 30 for task in tasks)

    simulate(scenario)


def test_a_lease_that_is_lost_meanwhile_ends_the_request() -> None:
    async def scenario(fleet: Fleet) -> None:
        say_everywhere(fleet, "x" * 2000)
        fleet.router.queue_s = 0.0
        task = fleet.tasks.create_task(outcome(fleet, max_tokens=1500))
        await asyncio.sleep(4.7)
        fleet.router.queue_s = 1.0
        fleet.quota.on_renewal = lambda r: (0, quota_pb2.LeaseState.STATE_LOST)
        die(fleet, "w1")
        error = await task
        assert error is not None
        assert error.reason == "quota_unavailable"
        assert not fleet.workers["w2"].submits

    simulate(scenario)


def test_what_has_no_room_in_the_submit_travels_in_parts_before_the_prompt_ends() -> None:
    ids = bytes(range(256)) * 4 * (MAX_EMITTED_BYTES // 1024 + 1)
    submit = worker_pb2.Submit(
        handle=3,
        prompt_ids=b"abcd" * 200_000,
        block_hashes=b"h" * 16 * 12_500,
        emitted=[worker_pb2.EmittedTokens(choice=c, token_ids=ids) for c in (0, 2)],
    )
    first, *parts = list(submit_frames(submit))
    assert not first.submit.emitted
    assert not first.submit.prompt_ids
    found: dict[int, bytes] = {}
    prompt = hashes = b""
    for frame in parts:
        part = frame.prompt_part
        assert part.handle == 3
        assert frame.ByteSize() < 1024 * 1024
        assert not (part.emitted and prompt)
        for each in part.emitted:
            found[each.choice] = found.get(each.choice, b"") + each.token_ids
        prompt, hashes = prompt + part.prompt_ids, hashes + part.block_hashes
    assert found == {0: ids, 2: ids}
    assert (prompt, hashes) == (b"abcd" * 200_000, b"h" * 16 * 12_500)


def test_the_frames_of_a_long_submit_are_made_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[worker_pb2.GatewayFrame] = []

    def noted(submit: worker_pb2.Submit) -> Iterator[worker_pb2.GatewayFrame]:
        for frame in submit_frames(submit):
            made.append(frame)
            yield frame

    monkeypatch.setattr(outgoing_frames, "submit_frames", noted)
    outgoing = OutgoingFrames({3})
    outgoing.submit(worker_pb2.Submit(handle=3, prompt_ids=b"abcd" * PART_TOKENS * 5))
    outgoing.credit(3, 0, 64)
    assert outgoing.is_unheard_of(3)
    written = []
    while frame := outgoing.next_frame():
        written.append(frame.WhichOneof("frame"))
        assert len(made) <= len(written) + 1
        assert not outgoing.is_unheard_of(3)
    # Credit never overtakes a part.
    assert written == ["submit", *["prompt_part"] * 4, "credits"]
