"""The reports of a request: spans with the right parents, an access line, metrics, no text."""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import REGISTRY

from baton.runtime import telemetry
from baton.wire.failures import BatonError, InvalidRequest, NoRoom, Unavailable
from services.gateway.request.limits import Limits
from tests.unit.gateway.fakes import Fleet, RecordingSink, artifact, simulate

TRACE = "a" * 32
INCOMING = f"00-{TRACE}-{'b' * 16}-01"
CANARY = "xyzzy-plugh"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    spans = InMemorySpanExporter()
    telemetry.setup("gateway", SimpleSpanProcessor(spans))
    yield spans
    telemetry.shutdown()
    telemetry.setup("gateway")


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_stages_are_children_of_the_request_and_hops_get_their_own(
    exporter: InMemorySpanExporter,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 0.1
        incoming = fleet.incoming(
            "/v1/chat/completions",
            {"model": "demo", "messages": [{"role": "user", "content": "hi"}]},
            traceparent=INCOMING,
        )
        await fleet.gateway.pipeline.run(incoming, RecordingSink())
        spans = by_name(exporter)
        root = spans["chat demo"]
        assert root.context.trace_id == int(TRACE, 16)
        assert root.parent is not None
        assert root.parent.span_id == int("b" * 16, 16)
        for name in ("auth", "validate", "tokenize", "reserve", "pick", "attempt", "settle"):
            assert spans[name].parent is not None
            assert spans[name].parent.span_id == root.context.span_id, name
        assert spans["queue"].parent is not None
        assert spans["queue"].parent.span_id == spans["pick"].context.span_id
        for span in spans.values():
            assert span.attributes is not None
            assert span.attributes["baton.request_id"] == "r1"
        request_hop = f"{spans['attempt'].context.span_id:016x}"
        assert fleet.worker.submits[0].traceparent.split("-")[2] == request_hop
        for context, name in (
            (fleet.tokenizer.contexts[0], "tokenize"),
            (fleet.router.contexts[0], "pick"),
            (fleet.quota.contexts["reserve"], "reserve"),
        ):
            hop = f"{spans[name].context.span_id:016x}"
            assert context.traceparent.split("-")[2] == hop
            assert context.request_id == "r1"

    simulate(scenario)


def test_kinds_say_which_spans_are_calls(exporter: InMemorySpanExporter) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()

    simulate(scenario)
    kinds = {name: span.kind for name, span in by_name(exporter).items()}
    assert kinds.pop("chat demo") is SpanKind.SERVER
    inner = {name for name, kind in kinds.items() if kind is SpanKind.INTERNAL}
    assert inner == {"validate", "queue"}
    assert set(kinds.values()) == {SpanKind.CLIENT, SpanKind.INTERNAL}


def test_the_root_tells_the_story_of_the_request(exporter: InMemorySpanExporter) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = Unavailable("gone", reason="worker_lost")
        await fleet.chat(stream=True)

    simulate(scenario)
    root = by_name(exporter)["chat demo"]
    attributes = dict(root.attributes or {})
    assert root.status.status_code is StatusCode.UNSET
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert "decode=" in str(attributes.pop("baton.stages"))
    assert attributes.pop("gen_ai.usage.input_tokens") > 0
    assert attributes == {
        "baton.request_id": "r1",
        "baton.tenant": "acme",
        "baton.outcome": "stop",
        "baton.num_attempts": 2,
        "baton.workers": ("w1<p1", "w2<p1"),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": "demo",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.output_tokens": 13,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
    }
    first, second = (s for s in exporter.get_finished_spans() if s.name == "attempt")
    assert (first.status.status_code, second.status.status_code) == (
        StatusCode.ERROR,
        StatusCode.UNSET,
    )
    assert (first.attributes or {})["error.type"] == "worker_lost"
    picks = [s for s in exporter.get_finished_spans() if s.name == "pick"]
    for attempt, pick in zip((first, second), picks, strict=True):
        assert [link.context.span_id for link in attempt.links] == [pick.context.span_id]


def test_a_wait_for_room_is_one_span_and_no_failure(exporter: InMemorySpanExporter) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = NoRoom("full")
        await fleet.chat()

    simulate(scenario)
    spans = exporter.get_finished_spans()
    assert not [span.name for span in spans if span.status.status_code is StatusCode.ERROR]
    (attempt,) = (span for span in spans if span.name == "attempt")
    (wait,) = (span for span in spans if span.name == "wait for room")
    assert (attempt.attributes or {})["baton.epoch"] == 2
    assert (wait.attributes or {})["baton.num_refusals"] == 1
    assert (wait.attributes or {})["baton.refused_by"] == "w1"
    assert [link.context.span_id for link in wait.links] == [attempt.context.span_id]
    assert wait.end_time is not None
    assert attempt.start_time is not None
    picks = [span.parent.span_id for span in spans if span.name == "pick" and span.parent]
    assert picks[1] == wait.context.span_id
    assert (by_name(exporter)["chat demo"].attributes or {})["baton.num_attempts"] == 1


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [("worker_lost", 503, StatusCode.ERROR), ("invalid_value", 400, StatusCode.UNSET)],
)
def test_a_clients_own_fault_is_no_error_of_the_server(
    exporter: InMemorySpanExporter, reason: str, status: int, code: StatusCode
) -> None:
    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.refusal = Unavailable("gone", reason=reason)
        with pytest.raises(BatonError):
            await fleet.chat()

    simulate(scenario)
    root = by_name(exporter)["chat demo"]
    assert root.status.status_code is code
    attributes = root.attributes or {}
    assert attributes["http.response.status_code"] == status
    assert attributes["error.type" if code is StatusCode.ERROR else "baton.refused"] == reason


@pytest.mark.parametrize(
    ("refusal", "slow_s", "kept"),
    [
        (None, 10.0, None),
        (None, 1e-9, "slow"),
        (Unavailable("x", reason="worker_lost"), 0, "failed"),
    ],
)
def test_of_a_trace_without_sampling_what_matters_is_kept(
    exporter: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Unavailable | None,
    slow_s: float,
    kept: str | None,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    telemetry.setup("gateway", SimpleSpanProcessor(exporter))

    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.refusal = refusal
        with suppress(Unavailable):
            await fleet.chat()

    simulate(scenario, limits=Limits(slow_first_token_s=slow_s))
    reasons = [(span.attributes or {})["baton.kept"] for span in exporter.get_finished_spans()]
    assert reasons == ([kept] if kept else [])
    assert set(by_name(exporter)) <= {"chat demo"}


def test_the_access_line_has_the_stages(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(fleet: Fleet) -> None:
        with caplog.at_level(logging.INFO, logger="access"):
            await fleet.chat()

    simulate(scenario)
    (record,) = [r for r in caplog.records if r.name == "access"]
    fields = record.baton_fields  # type: ignore[attr-defined]
    assert fields["request_id"] == "r1"
    assert fields["status"] == 200
    assert fields["stages"].startswith("auth=0.0ms validate=10.0ms reserve=0.0ms tokenize=")
    assert "settle=" in fields["stages"]


def test_no_text_of_a_request_reaches_logs_spans_or_metrics(
    caplog: pytest.LogCaptureFixture, exporter: InMemorySpanExporter
) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = [CANARY]
        messages = [{"role": "user", "content": CANARY}]
        with caplog.at_level(logging.DEBUG):
            await fleet.chat(messages=messages, user=CANARY, stop=CANARY + "!")
            for bad in ({"temperature": CANARY}, {CANARY: 1}, {"stop": [CANARY] * 33}):
                with pytest.raises(InvalidRequest):
                    await fleet.chat(messages=messages, **bad)

    simulate(scenario)
    assert len(caplog.records) >= 4
    for record in caplog.records:
        assert CANARY not in json.dumps(record.__dict__, default=str)
    for span in exporter.get_finished_spans():
        assert CANARY not in span.to_json()
    for metric in REGISTRY.collect():
        assert CANARY not in str(metric.samples)


def test_metrics_count_what_happened() -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, {"model_name": "demo", **labels}) or 0.0

    before = {
        "ttft": value("vllm:time_to_first_token_seconds_count"),
        "gaps": value("vllm:inter_token_latency_seconds_count"),
        "e2e": value("vllm:e2e_request_latency_seconds_count"),
        "stop": value("vllm:request_success_total", finished_reason="stop"),
        "tokens": value("vllm:request_generation_tokens_sum"),
    }

    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()

    simulate(scenario)
    assert value("vllm:time_to_first_token_seconds_count") == before["ttft"] + 1
    assert value("vllm:inter_token_latency_seconds_count") >= before["gaps"] + 10
    assert value("vllm:e2e_request_latency_seconds_count") == before["e2e"] + 1
    assert value("vllm:request_success_total", finished_reason="stop") == before["stop"] + 1
    assert value("vllm:request_generation_tokens_sum") == before["tokens"] + 13


def test_the_stages_on_the_metrics_page_add_up_to_the_wall_time() -> None:
    def stages() -> dict[str, float]:
        samples = (each for metric in REGISTRY.collect() for each in metric.samples)
        return {
            each.labels["stage"]: each.value
            for each in samples
            if each.name == "baton_gateway_stage_seconds_sum"
            and each.labels["model_name"] == "demo"
        }

    def wall_s() -> float:
        name = "vllm:e2e_request_latency_seconds_sum"
        return REGISTRY.get_sample_value(name, {"model_name": "demo"}) or 0.0

    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()

    before, wall_before_s = sum(stages().values()), wall_s()
    simulate(scenario)
    assert {"auth", "tokenize", "pick", "decode"} <= stages().keys()
    assert sum(stages().values()) - before == pytest.approx(wall_s() - wall_before_s)
    assert wall_s() > wall_before_s


def test_the_span_has_the_tokens_of_reasoning(exporter: InMemorySpanExporter) -> None:
    def prepare(fleet: Fleet) -> None:
        fleet.tokenizer.data = artifact(reasoning_syntax="think")

    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["<think>a</think>b"]
        await fleet.chat(max_tokens=50)
        attributes = by_name(exporter)["chat demo"].attributes
        assert attributes is not None
        assert attributes["gen_ai.usage.reasoning.output_tokens"] == len("<think>a</think>")

    simulate(scenario, prepare=prepare)
