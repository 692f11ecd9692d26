from pathlib import Path

from baton.localstack.span_store import SpanStore, StoredSpan, spans_of_export
from baton.localstack.waterfall import render

# The span of a whole request has it.
ENDED = {"baton.outcome": "stop"}


def span(span_id: str, parent: str = "", name: str = "s", **more) -> StoredSpan:
    values = {
        "trace_id": "t1",
        "request_id": "r1",
        "service": "gateway",
        "start_ns": 0,
        "end_ns": 1_000_000,
        "failed": False,
        "attributes": {},
    }
    values.update(more)
    return StoredSpan(span_id=span_id, parent_id=parent, name=name, **values)


def test_all_spans_of_a_request_are_found_even_those_without_its_id(tmp_path: Path) -> None:
    with SpanStore(tmp_path / "spans.db") as store:
        root = span("a", name="chat demo", attributes=ENDED)
        store.add([root, span("b", "a", request_id=""), span("c", trace_id="t2")])
        other = span("d", trace_id="t3", request_id="r2", start_ns=5, attributes=ENDED)
        store.add([other])
        assert {found.span_id for found in store.of_request("r1")} == {"a", "b", "c"}
        assert store.last_request_ids(2) == ["r2", "r1"]


def test_the_latest_request_that_its_client_calls_so_is_found(tmp_path: Path) -> None:
    theirs = {"baton.client_request_id": "job.1"}
    with SpanStore(tmp_path / "spans.db") as store:
        for number in range(3):
            own = {"trace_id": f"t{number}", "request_id": f"r{number}", "start_ns": number}
            named = ENDED | (theirs if number < 2 else {})
            store.add([span("a", name="chat demo", attributes=named, **own)])
            store.add([span("b", "a", **own)])
        assert [found.request_id for found in store.of_request("job.1")] == ["r1", "r1"]
        assert store.of_request("job") == []


def test_the_store_keeps_only_the_newest_spans(tmp_path: Path) -> None:
    with SpanStore(tmp_path / "spans.db", max_spans=10) as store:
        for number in range(50):
            store.add([span(f"s{number}", request_id=f"r{number}")])
        assert store.of_request("r0") == []
        assert store.of_request("r49")
        kept = [number for number in range(50) if store.of_request(f"r{number}")]
        assert len(kept) <= 20


def test_what_the_sdk_exports_can_be_read_back() -> None:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from baton.runtime import telemetry

    exporter = InMemorySpanExporter()
    telemetry.setup("decode_worker", SimpleSpanProcessor(exporter))
    with telemetry.start_span(
        "outer", request_id="r9", attributes={"n": 3, "m": ["a", "b"]}
    ) as outer:
        telemetry.start_span("inner", parent=outer, request_id="r9").end()
    telemetry.setup("svc")
    inner, parent = spans_of_export(encode_spans(exporter.get_finished_spans()))
    assert (inner.name, parent.name, parent.service) == ("inner", "outer", "decode_worker")
    assert inner.parent_id == parent.span_id
    assert parent.attributes == {"n": "3", "m": "a,b"}
    assert parent.request_id == "r9"


def test_waterfall_shows_children_below_parents_with_service_and_time() -> None:
    text = render(
        [
            span("a", name="request", end_ns=10_000_000),
            span("c", "b", "decode", service="decode-worker", start_ns=5_000_000, end_ns=9_000_000),
            span("b", "a", "pick", start_ns=1_000_000, end_ns=2_000_000, failed=True),
        ]
    )
    lines = text.splitlines()
    assert "10.0 ms" in lines[0]
    assert "r1" in lines[0]
    assert [word for line in lines[1:] for word in line.split()[1:2]] == [
        "request",
        "pick",
        "decode",
    ]
    assert "FAILED" in lines[2]
    assert "4.00 ms" in lines[3]


def test_children_of_a_span_that_was_not_exported_go_below_the_request_in_order_of_time() -> None:
    text = render(
        [
            span("a", name="request", end_ns=10_000_000),
            span("d", "a", "move", start_ns=5_000_000, end_ns=6_000_000),
            span("c", "killed", "handoff", start_ns=2_000_000, end_ns=3_000_000),
        ]
    )
    names = [line.split()[1] for line in text.splitlines()[1:]]
    assert names == ["request", "handoff", "move"]
