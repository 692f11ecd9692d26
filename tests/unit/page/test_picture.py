"""The fleet as a picture: what each pair handed over."""

from baton.page import picture
from baton.page.span_store import StoredSpan

MS = 1_000_000


def span(span_id: str, parent: str, name: str, ends_ms: int, **attributes: str) -> StoredSpan:
    named = {f"baton.{name}": value for name, value in attributes.items()}
    return StoredSpan("t", span_id, parent, "r", "worker", name, 0, ends_ms * MS, False, named)


def test_a_pair_is_told_by_its_handoffs_and_what_they_added_after_the_prompt() -> None:
    spans = [
        span(
            "h", "d", "handoff", 50,
            worker_id="decode-2", prefill_endpoint="p:1", num_bytes_received="4000",
            transport="shm",
        ),
        span("p", "h", "prefill", 48, worker_id="prefill-1", outcome="complete"),
        span("c", "p", "prefill.compute", 30),
        # Of a stack that does not say the worker in it; its decode's span has ended.
        span("g", "e", "handoff", 90, prefill_endpoint="p:1", num_bytes_received="1000"),
        span("e", "", "decode", 200, worker_id="decode-1"),
        # Nothing is known of this one's workers.
        span("x", "y", "handoff", 90, prefill_endpoint="elsewhere:1"),
    ]  # fmt: skip
    first, second = picture.pair_pictures(spans, {"p:1": "prefill-1"}, window_s=10)
    assert (first.prefill, first.decode, first.bytes_per_s) == ("prefill-1", "decode-1", 100)
    assert first.added_s is None
    assert (second.decode, second.transport, second.num_handoffs) == ("decode-2", "shm", 1)
    assert second.added_s == 0.02
