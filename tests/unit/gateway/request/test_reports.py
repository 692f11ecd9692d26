"""The reports of a request: spans with the right parents, an access line, metrics, no text."""

import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from baton.runtime import telemetry
from baton.wire.failures import InvalidRequest
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
        root = spans["gateway.request"]
        assert root.context.trace_id == int(TRACE, 16)
        assert root.parent is not None
        assert root.parent.span_id == int("b" * 16, 16)
        for name in ("auth", "validate", "tokenize", "reserve", "pick", "settle"):
            assert spans[name].parent is not None
            assert spans[name].parent.span_id == root.context.span_id, name
        assert spans["queue"].parent is not None
        assert spans["queue"].parent.span_id == spans["pick"].context.span_id
        for span in spans.values():
            assert span.attributes is not None
            assert span.attributes["baton.request_id"] == "r1"
        request_hop = f"{root.context.span_id:016x}"
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
        attributes = by_name(exporter)["gateway.request"].attributes
        assert attributes is not None
        assert attributes["gen_ai.usage.reasoning.output_tokens"] == len("<think>a</think>")

    simulate(scenario, prepare=prepare)
