"""Events of a streamed answer, however the network cuts them."""

import json

import pytest

from loadtest.raw_client import StreamedAnswer


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(**fields: object) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


STREAM = (
    delta(role="assistant", content="")
    + delta(content=" a")
    + delta(content=" b")
    + delta()
    + event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3})
    + b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 7, 64, len(STREAM)])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_only_events_with_text_count_however_they_are_cut(size: int, newline: bytes) -> None:
    stream = STREAM.replace(b"\n", newline)
    answer = StreamedAnswer(began_at=0.0)
    for number, start in enumerate(range(0, len(stream), size)):
        answer.feed(stream[start : start + size], now=float(number))
    answer.status = 200
    described = answer.describe()
    assert len(described["text_times_s"]) == 2
    assert described["num_output_tokens"] == 3
    assert described["num_prompt_tokens"] == 7


def test_an_error_event_makes_the_answer_an_error() -> None:
    answer = StreamedAnswer(began_at=0.0)
    answer.feed(delta(content=" a") + event(error={"message": "lost"}), now=1.0)
    answer.status = 200
    assert "lost" in answer.describe()["error"]


def test_a_refusal_is_an_error_with_its_status() -> None:
    answer = StreamedAnswer(began_at=0.0)
    answer.feed(b'{"error": "full"}', now=1.0)
    answer.status = 429
    assert answer.describe()["error"] == 'status 429: {"error": "full"}'
