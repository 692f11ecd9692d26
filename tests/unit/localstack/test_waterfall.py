"""A request's spans as lines: whole when piped, never wider than a terminal."""

import pytest

from baton.localstack.waterfall import facts, render
from baton.page.span_store import StoredSpan

MS = 1_000_000


def span(span_id: str, parent: str = "", name: str = "s", **more: object) -> StoredSpan:
    values: dict[str, object] = {
        "trace_id": "t1",
        "request_id": "r1",
        "service": "baton-gateway",
        "start_ns": 0,
        "end_ns": MS,
        "failed": False,
        "attributes": {},
    }
    return StoredSpan(span_id=span_id, parent_id=parent, name=name, **(values | more))  # type: ignore[arg-type]


TOLD = {"baton.outcome": "stop", "baton.tenant": "acme", "gen_ai.usage.output_tokens": "7"}
SPANS = [
    span("a", name="chat demo", end_ns=10 * MS, attributes=TOLD),
    span("c", "b", "decode", service="decode_worker", start_ns=5 * MS, end_ns=9 * MS),
    span("e", "c", "handoff", service="decode_worker", start_ns=5 * MS, end_ns=6 * MS),
    span(
        "b", "a", "pick", start_ns=MS, end_ns=2 * MS, failed=True,
        attributes={"error.type": "no_worker", "baton.pick.reasons": "decode-1 0.3 s " * 20},
    ),
]  # fmt: skip


def test_a_row_has_its_milliseconds_first_and_its_service_and_name_behind_the_bar() -> None:
    rows = [line.split() for line in render(SPANS)[5:]]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("10.00", "gateway", "chat"),
        ("1.00", "gateway", "pick"),
        ("4.00", "decode", "decode"),
        ("1.00", "decode", "handoff"),
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_nothing_is_wider_and_a_failure_is_seen(width: int) -> None:
    lines = render(SPANS, width, web_url="http://127.0.0.1:8081/#/requests/r1")
    assert max(map(len, lines)) <= width
    (pick,) = (line for line in lines if " pick " in line)
    assert "FAILED no_worker" in pick
    assert pick.endswith("…")


def test_nothing_is_cut_where_it_goes_to_a_program() -> None:
    (pick,) = (line for line in render(SPANS) if " pick " in line)
    assert SPANS[3].attributes["baton.pick.reasons"] in pick


def test_the_head_says_when_the_first_token_came_and_where_it_is_drawn() -> None:
    lines = render(SPANS, web_url="http://127.0.0.1:8081/#/requests/r1")
    assert lines[0] == "request r1"
    assert lines[1].endswith("acme  stop  10.0 ms")
    assert lines[2].startswith("first token after 6.0 ms")
    assert lines[3] == "web  http://127.0.0.1:8081/#/requests/r1"
    assert facts(SPANS)["first_token_ms"] == 6.0


def test_children_of_a_span_that_was_not_exported_go_below_the_request_in_order_of_time() -> None:
    lines = render(
        [
            span("a", name="chat demo", end_ns=10 * MS),
            span("d", "a", "move", start_ns=5 * MS, end_ns=6 * MS),
            span("c", "killed", "handoff", start_ns=2 * MS, end_ns=3 * MS),
        ]
    )
    assert [line.split()[3] for line in lines[-3:]] == ["chat", "handoff", "move"]


def test_without_spans_there_is_nothing_to_show() -> None:
    assert render([]) == []
