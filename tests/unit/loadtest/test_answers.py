"""Streamed answers line by line, and the stages of a request."""

import json

import pytest

from loadtest.answers import AnswerError, StreamedAnswer
from loadtest.reporting.stages import CLIENT, SERVER, parse_server_timing, timeline


def text(content: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}]}).encode() + b"\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\r\n'


def whole_answer() -> StreamedAnswer:
    answer = StreamedAnswer(origin_s=10.0)
    for line, at_s in ((text("a"), 10.5), (b"\n", 10.5), (text("b"), 10.6), (text("c"), 10.8)):
        answer.feed(line, at_s)
    answer.feed(USAGE, 10.9)
    answer.feed(b"data: [DONE]\n", 10.9)
    return answer


def test_times_are_from_the_origin_and_then_from_text_to_text() -> None:
    answer = StreamedAnswer(origin_s=10.0)
    lines = (
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n',
        text("a"),
        b": keep-alive\n",
        text("b"),
        b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n',
    )
    gaps = [answer.feed(line, 10.0 + number) for number, line in enumerate(lines)]
    assert gaps == [None, 1.0, None, 2.0, None]


def test_rates_go_by_the_servers_count() -> None:
    answer = whole_answer()
    answer.check_end()
    assert answer.text == "abc"
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (9, 4)
    assert answer.tpot_s == pytest.approx(0.1)


def test_a_streams_speed_is_of_the_tokens_after_the_first() -> None:
    assert whole_answer().tokens_per_s == pytest.approx(3 / 0.3)


def test_an_answer_that_was_read_all_at_once_has_no_speed() -> None:
    """By what separates lines of one read it would be 100,000 tokens a second."""
    answer = StreamedAnswer(origin_s=10.0)
    for number in range(100):
        answer.feed(text("a"), 10.5 + number * 1e-6)
    answer.feed(USAGE, 10.5002)
    assert answer.tokens_per_s is None


def test_tokens_that_came_with_the_first_one_take_no_part_in_the_speed() -> None:
    answer = StreamedAnswer(origin_s=10.0)
    for at_s in (10.5, 10.5001, 11.5, 12.5):
        answer.feed(text("a"), at_s)
    answer.feed(USAGE, 12.6)
    assert answer.tokens_per_s == pytest.approx(1.0)


def test_tokens_without_text_take_their_time_too() -> None:
    answer = StreamedAnswer(origin_s=10.0)
    answer.feed(text("a"), 10.5)
    answer.feed(b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n', 13.5)
    answer.feed(USAGE, 13.6)
    assert answer.decode_s == 3.0
    assert answer.tpot_s == 1.0


def test_an_error_event_is_reported_by_its_code() -> None:
    answer = StreamedAnswer(0.0)
    with pytest.raises(AnswerError, match="worker_lost"):
        answer.feed(b'data: {"error":{"message":"gone","code":"worker_lost"}}\n', 1.0)


def test_a_stream_that_only_stops_has_failed() -> None:
    answer = StreamedAnswer(0.0)
    answer.feed(text("a"), 1.0)
    with pytest.raises(AnswerError, match="without"):
        answer.check_end()


def test_an_answer_without_text_has_failed() -> None:
    answer = StreamedAnswer(0.0)
    answer.feed(b"data: [DONE]\n", 1.0)
    with pytest.raises(AnswerError, match="no text"):
        answer.check_end()


def test_a_line_that_is_not_an_event_has_failed() -> None:
    with pytest.raises(AnswerError, match="not JSON"):
        StreamedAnswer(0.0).feed(b"data: <html>\n", 1.0)


def test_server_timing_is_read_as_browsers_do() -> None:
    header = 'auth;dur=0.3, cache;desc="hit", prefill.queue ; dur=12, bad;dur=x'
    assert parse_server_timing(header) == [("auth", 0.3), ("prefill.queue", 12.0)]


def test_a_timeline_has_no_gaps_and_adds_up() -> None:
    answer = whole_answer()
    stages = timeline(
        answer, sent_s=10.1, ended_s=11.0, server_timing="queue;dur=100,prefill;dur=200"
    )
    assert [(stage.name, stage.seen_by) for stage in stages] == [
        ("late", CLIENT),
        ("queue", SERVER),
        ("prefill", SERVER),
        ("network and client", CLIENT),
        ("decode", CLIENT),
        ("end", CLIENT),
    ]
    ends_ms = [stage.began_ms + stage.length_ms for stage in stages]
    assert [stage.began_ms for stage in stages[1:]] == pytest.approx(ends_ms[:-1])
    assert ends_ms[-1] == pytest.approx(1000)
