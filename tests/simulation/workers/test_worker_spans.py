"""The spans of one request over both workers, and what the metrics count."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client import REGISTRY

from baton.runtime import telemetry
from baton.testing.virtual_clock import virtual
from tests.simulation.workers.fleet import fleet

PROMPT = list(range(100, 150))
STAGES = {"prefill.queue", "prefill.compute"}
ROOT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    telemetry.setup("workers", SimpleSpanProcessor(exporter))
    yield exporter
    telemetry.setup("workers")


def test_spans_of_a_handed_over_request_have_the_right_parents(
    exporter: InMemorySpanExporter,
) -> None:
    @virtual
    async def scenario() -> None:
        async with fleet() as f:
            await (await f.gateway.submit(PROMPT, traceparent=ROOT)).over()

    scenario()

    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"decode", "handoff", "prefill", *STAGES}
    assert {span.context.trace_id for span in spans.values()} == {int(ROOT[3:35], 16)}
    parents = {name: span.parent.span_id for name, span in spans.items()}
    assert parents["decode"] == int(ROOT[36:52], 16)
    assert parents["handoff"] == spans["decode"].context.span_id
    assert parents["prefill"] == spans["handoff"].context.span_id
    assert {parents[stage] for stage in STAGES} == {spans["prefill"].context.span_id}
    kinds = {name: span.kind for name, span in spans.items() if name not in STAGES}
    assert kinds == {
        "decode": SpanKind.SERVER,
        "handoff": SpanKind.CLIENT,
        "prefill": SpanKind.SERVER,
    }
    assert all(s.attributes["baton.request_id"] == "request-1" for s in spans.values())
    assert spans["handoff"].attributes["baton.num_blocks_received"] == 4


def test_spans_of_a_local_request_hang_below_decode(exporter: InMemorySpanExporter) -> None:
    @virtual
    async def scenario() -> None:
        async with fleet() as f:
            await (await f.gateway.submit(PROMPT, traceparent=ROOT, prefill_endpoint="")).over()

    scenario()

    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"decode", "prefill.queue", "prefill.compute"}
    decode_id = spans["decode"].context.span_id
    assert spans["prefill.compute"].parent.span_id == decode_id


def test_a_failed_handoff_marks_its_spans(exporter: InMemorySpanExporter) -> None:
    @virtual
    async def scenario() -> None:
        async with fleet() as f:
            await (await f.gateway.submit(PROMPT, prefill_endpoint="nowhere:1")).over()

    scenario()

    reasons = {s.name: s.attributes.get("error.type") for s in exporter.get_finished_spans()}
    assert reasons == {"handoff": "handoff_failed", "decode": "handoff_failed"}


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@virtual
async def test_the_metrics_show_blocks_in_use_and_what_moved() -> None:
    engine = {"model_name": "fake", "engine": "0"}
    received = {"direction": "received"}
    async with fleet() as f:
        blocks = value("baton_handoff_blocks_total", **received)
        prompt_tokens = value("vllm:prompt_tokens_total", **engine)
        batches = value("baton_step_batch_size_count", **engine)
        answer = await f.gateway.submit(PROMPT, max_tokens=30)
        await answer.first_token()
        await asyncio.sleep(0.05)
        assert value("baton_kv_blocks_used", **engine) > 0
        assert 0 < value("vllm:kv_cache_usage_perc", **engine) < 1

        await answer.over()
        await f.settle(1)

        assert value("baton_kv_blocks_used", **engine) == 0
        assert value("baton_handoff_blocks_total", **received) == blocks + 4
        # Both workers live in this process and count the prompt.
        assert value("vllm:prompt_tokens_total", **engine) == prompt_tokens + 100
        assert value("baton_step_batch_size_count", **engine) > batches
