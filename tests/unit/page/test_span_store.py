from pathlib import Path

from baton.page.span_store import SpanStore, StoredSpan, spans_of_export

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


def test_a_file_that_is_bounded_gives_the_oldest_spans_away(tmp_path: Path) -> None:
    path = tmp_path / "spans.db"
    most = 2**20
    long = {"note": "x" * 4000}
    with SpanStore(path, max_bytes=most) as store:
        for number in range(1000):
            store.add([span(f"s{number}", request_id=f"r{number}", attributes=long)])
        assert store.of_request("r999")
        assert not store.of_request("r0")
    assert path.stat().st_size < 1.2 * most


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
