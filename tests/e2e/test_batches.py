"""Files and batches with the unchanged OpenAI client."""

import json
from typing import Any

import openai
import pytest

from tests.e2e.conftest import Stack, wait_until

ENDED = ("completed", "failed", "expired", "cancelled")


def lines(num: int, **fields: Any) -> bytes:
    """A file of so many requests, and one that is refused."""
    body = {"model": "baton-demo", "temperature": 0, "max_tokens": 8, **fields}
    body["messages"] = [{"role": "user", "content": "What is TTFT?"}]
    requests = [
        {"custom_id": f"q{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(num)
    ]
    requests.append(requests[0] | {"custom_id": "bad", "body": body | {"top_p": 7}})
    return "\n".join(json.dumps(request) for request in requests).encode()


def begun(client: openai.OpenAI, content: bytes) -> openai.types.Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"job": "night"},
    )


def test_a_batch_is_answered_line_by_line(stack: Stack) -> None:
    client = stack.client()
    content = lines(3)
    batch = begun(client, content)
    assert (batch.status, batch.metadata) == ("validating", {"job": "night"})
    assert client.files.content(batch.input_file_id).content == content
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED)
    ended = client.batches.retrieve(batch.id)
    assert ended.status == "completed"
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
    answers = [json.loads(text) for text in client.files.content(ended.output_file_id).iter_lines()]
    assert sorted(answer["custom_id"] for answer in answers) == ["q0", "q1", "q2"]
    alone = client.chat.completions.create(
        model="baton-demo",
        temperature=0,
        max_tokens=8,
        messages=[{"role": "user", "content": "What is TTFT?"}],
    )
    texts = {answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers}
    assert texts == {alone.choices[0].message.content}
    (refused,) = client.files.content(ended.error_file_id).iter_lines()
    assert json.loads(refused)["response"]["status_code"] == 400
    assert ended.usage.output_tokens == 3 * alone.usage.completion_tokens
    for answer in answers:
        wait_until(lambda name=answer["response"]["request_id"]: stack.usage_records(name))
    assert batch.id in [each.id for each in client.batches.list()]
    for name in (ended.input_file_id, ended.output_file_id, ended.error_file_id):
        assert name in [file.id for file in client.files.list()]
        assert client.files.delete(name).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)


def test_a_batch_is_cancelled(stack: Stack) -> None:
    client = stack.client()
    batch = begun(client, lines(20, max_tokens=400, ignore_eos=True))
    assert client.batches.cancel(batch.id).status == "cancelling"
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED)
    assert client.batches.retrieve(batch.id).status == "cancelled"
