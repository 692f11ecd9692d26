"""What clients send by mistake or by malice: the right status, the field named, and life goes on.

Numbers are rows of the bad-input catalogue. Rows about prompts' contents (39, 43 to 46, token ids
at the vocabulary's size) are in the tokenizer's tests, slow readers (50) and text that looks like
an event (53) in tests/unit/gateway/test_app.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from baton.wire.failures import InvalidRequest, LimitExceeded
from services.gateway.http import protocol as http_protocol
from services.gateway.http import request as http_request
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "demo", "messages": MESSAGES},
    COMPLETIONS: {"model": "demo", "prompt": "hi"},
    RESPONSES: {"model": "demo", "input": "hi"},
}
GONE = object()
AUTHORIZATION = f"authorization: Bearer {KEY}\r\n".encode()
BODY = json.dumps(GOOD[CHAT]).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack")) as running:
        await until_ready(running)
        # Keys are looked up each time, and answers come at once.
        running.quota.principal.fresh_for_s = 0.001
        for worker in running.workers.values():
            worker.prefill_s = worker.step_s = 0.0
            worker.texts = ["Hi"]
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """A client without the certificates of all authorities: reading them takes 30 ms."""
    options: dict[str, Any] = {"headers": {"authorization": f"Bearer {KEY}"}, "timeout": 60}
    async with httpx.AsyncClient(base_url=stack.root, verify=False, **options) as client:
        yield client
        answer = await client.post(CHAT, json=GOOD[CHAT])
        assert answer.status_code == 200, "the service still answers"


async def refused(
    http: httpx.AsyncClient, content: bytes | str, path: str = CHAT, status: int = 400
) -> dict[str, Any]:
    """The error object of a request that is refused."""
    answer = await http.post(path, content=content)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 400
    assert answer.headers["x-should-retry"] == "false"
    return error


def with_field(path: str, name: str, value: Any) -> bytes:
    fields = {**GOOD[path], name: value}
    return json.dumps({key: value for key, value in fields.items() if value is not GONE}).encode()


UNSUPPORTED = "unsupported_parameter"
CONTENT = "unsupported_content"
FIELDS: list[tuple[int, str, str, Any, str]] = [
    (19, CHAT, "temperature", "hot", ""),
    (19, CHAT, "n", True, ""),
    (19, CHAT, "max_tokens", 10.5, ""),
    (19, CHAT, "stream", "true", ""),
    (20, CHAT, "model", GONE, ""),
    (20, CHAT, "messages", GONE, ""),
    (20, COMPLETIONS, "prompt", GONE, ""),
    (20, RESPONSES, "input", GONE, ""),
    (20, CHAT, "model", "", ""),
    (20, CHAT, "model", "m" * 257, ""),
    (22, CHAT, "messages", [], ""),
    (22, CHAT, "messages", {}, ""),
    (22, CHAT, "messages", MESSAGES * 4097, ""),
    (23, COMPLETIONS, "prompt", "", ""),
    (23, COMPLETIONS, "prompt", [], ""),
    (23, COMPLETIONS, "prompt", [[]], ""),
    (23, RESPONSES, "input", "", ""),
    (23, RESPONSES, "input", [], ""),
    (25, CHAT, "max_tokens", 0, ""),
    (25, CHAT, "max_tokens", -1, ""),
    (25, CHAT, "max_tokens", 2**31, ""),
    (25, CHAT, "max_completion_tokens", 0, ""),
    (25, RESPONSES, "max_output_tokens", 2**70, ""),
    (26, CHAT, "n", 0, ""),
    (26, CHAT, "n", 129, ""),
    (26, COMPLETIONS, "n", 10**9, ""),
    (26, RESPONSES, "n", 2, UNSUPPORTED),
    (27, CHAT, "temperature", -1, ""),
    (27, CHAT, "temperature", 2.1, ""),
    (27, CHAT, "top_p", 0, ""),
    (27, CHAT, "top_p", 1.1, ""),
    (27, CHAT, "presence_penalty", 3, ""),
    (27, CHAT, "frequency_penalty", -3, ""),
    (27, CHAT, "min_p", 2, ""),
    (27, CHAT, "repetition_penalty", 0, ""),
    (28, CHAT, "logit_bias", {str(i): 1 for i in range(10_000)}, ""),
    (28, CHAT, "logit_bias", {"999999": 1}, "invalid_token_id"),
    (28, CHAT, "stop_token_ids", [999_999], "invalid_token_id"),
    (28, CHAT, "min_tokens", -1, ""),
    (29, CHAT, "stop", ["a"] * 33, ""),
    (29, CHAT, "stop", "", ""),
    (29, COMPLETIONS, "stop", "x" * 1_000_000, ""),
    (30, CHAT, "seed", 2**70, ""),
    (30, CHAT, "seed", "x", ""),
    (35, CHAT, "user", "x" * 1_000_000, ""),
    (35, CHAT, "metadata", {str(i): "x" for i in range(17)}, ""),
    (36, CHAT, "cache_salt", "", ""),
    (36, CHAT, "cache_salt", "x" * 10_000, ""),
    (37, COMPLETIONS, "prompt_embeds", "x", UNSUPPORTED),
    (37, CHAT, "no_such_parameter", 1, UNSUPPORTED),
    (37, RESPONSES, "previous_response_id", "resp_1", UNSUPPORTED),
    (37, CHAT, "tool_choice", "required", ""),
    (37, CHAT, "guided_regex", "x" * 10_000, ""),
    (37, COMPLETIONS, "guided_choice", [], ""),
    (37, CHAT, "logprobs", 1, ""),
    (37, CHAT, "top_logprobs", 21, ""),
    (37, CHAT, "use_beam_search", 1, ""),
    (37, CHAT, "length_penalty", 1.5, ""),
    (37, CHAT, "early_stopping", "soon", ""),
    (37, RESPONSES, "use_beam_search", True, UNSUPPORTED),
    (37, COMPLETIONS, "logprobs", 21, ""),
    (37, COMPLETIONS, "echo", 1, ""),
    (37, CHAT, "echo", True, UNSUPPORTED),
    (37, COMPLETIONS, "best_of", 129, ""),
    (37, COMPLETIONS, "suffix", "end", UNSUPPORTED),
    (37, RESPONSES, "previous_response_id", "resp_1", UNSUPPORTED),
    (37, RESPONSES, "background", True, UNSUPPORTED),
    (38, CHAT, "modalities", ["text", "audio"], UNSUPPORTED),
]


@pytest.mark.parametrize(("row", "path", "name", "value", "code"), FIELDS)
async def test_a_bad_field_is_named(
    http: httpx.AsyncClient, row: int, path: str, name: str, value: Any, code: str
) -> None:
    error = await refused(http, with_field(path, name, value), path)
    assert (error["code"], error["param"]) == (code or "invalid_value", name)


IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254"}}
FILE = {"type": "input_image", "image_url": "file:///etc/passwd"}
MESSAGES_OF: list[tuple[int, str, Any, str, str]] = [
    (22, CHAT, {"role": "boss", "content": "x"}, "role", ""),
    (22, CHAT, {"content": "x"}, "role", ""),
    (22, CHAT, {"role": "assistant", "content": None}, "content", ""),
    (22, CHAT, {"role": "user"}, "content", ""),
    (22, CHAT, {"role": "tool", "content": "x"}, "tool_call_id", ""),
    (22, CHAT, {"role": "user", "content": 5}, "content", ""),
    (22, CHAT, {"role": "user", "content": "x", "extra": 1}, "extra", UNSUPPORTED),
    (22, RESPONSES, {"role": "boss", "content": "x"}, "role", ""),
    (22, RESPONSES, {"type": "computer_call"}, "type", CONTENT),
    (38, CHAT, {"role": "user", "content": [IMAGE]}, "content[0]", CONTENT),
    (38, RESPONSES, {"role": "user", "content": [FILE]}, "content[0]", CONTENT),
]


@pytest.mark.parametrize(("row", "path", "message", "place", "code"), MESSAGES_OF)
async def test_a_bad_message_is_named(
    http: httpx.AsyncClient, row: int, path: str, message: Any, place: str, code: str
) -> None:
    name = "messages" if path == CHAT else "input"
    error = await refused(http, with_field(path, name, [message]), path)
    assert (error["code"], error["param"]) == (code or "invalid_value", f"{name}[0].{place}")


@pytest.mark.parametrize("value", [-1, 2**63, 2**200, 1.5, True, "a", None, [2], {}])
async def test_24_a_bad_token_id_is_named(http: httpx.AsyncClient, value: Any) -> None:
    error = await refused(http, with_field(COMPLETIONS, "prompt", [1, value]), COMPLETIONS)
    assert (error["code"], error["param"]) == ("invalid_token_id", "prompt[1]")


async def test_25_two_different_limits_are_refused(http: httpx.AsyncClient) -> None:
    fields = {**GOOD[CHAT], "max_tokens": 2, "max_completion_tokens": 3}
    error = await refused(http, json.dumps(fields))
    assert error["param"] == "max_completion_tokens"


async def test_21_a_model_that_is_not_allowed_looks_like_one_that_does_not_exist(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    missing = await refused(http, with_field(CHAT, "model", "nothing"), status=404)
    stack.quota.principal.allowed_models.append("other")
    try:
        hidden = await refused(http, BODY, status=404)
    finally:
        del stack.quota.principal.allowed_models[:]
    assert hidden["code"] == missing["code"] == "model_not_found"
    assert hidden["message"] == missing["message"].replace("nothing", "demo")


TEXT = b'{"model":"demo","messages":[{"role":"user","content":"%b"}]}'
BODIES: list[tuple[int, bytes, str]] = [
    (15, b"[" * 100_000, "json_too_deep"),
    (15, b'{"a":' * 100_000, "json_too_deep"),
    (15, b'{"model":"demo","metadata":' + b"[" * 70 + b"]" * 70 + b"}", "json_too_deep"),
    (16, b'{"model":"demo","model":"x","messages":[]}', "duplicate_key"),
    (16, b'{"model":"demo","messages":[{"role":"user","role":"user"}]}', "duplicate_key"),
    (17, TEXT % b"\xff", "invalid_unicode"),
    (17, TEXT % b"\xc0\xaf", "invalid_unicode"),
    (17, TEXT % b"\xed\xa0\x80", "invalid_unicode"),
    (17, TEXT % b"\\ud800", "invalid_unicode"),
    (17, b'{"\\udc00":1}', "invalid_unicode"),
    (17, b"\xef\xbb\xbf" + TEXT % b"x", "invalid_unicode"),
    (17, (TEXT % b"x").decode().encode("utf-16"), "invalid_unicode"),
    (18, TEXT % b"\x00", "invalid_json"),
    (19, b'{"model":"demo","temperature":NaN}', "invalid_json"),
    (19, b'{"model":"demo","seed":' + b"9" * 5000 + b"}", "invalid_json"),
    (19, b"", "invalid_json"),
    (19, b"null", "invalid_json"),
    (19, b"model=demo", "invalid_json"),
    (19, (TEXT % b"x") * 2, "invalid_json"),
    (22, b'{"model":"demo","messages":[' + b"{}," * 100_000 + b"{}]}", "invalid_value"),
]


@pytest.mark.parametrize(("row", "body", "code"), BODIES)
async def test_a_body_that_is_no_request(
    http: httpx.AsyncClient, row: int, body: bytes, code: str
) -> None:
    assert (await refused(http, body))["code"] == code


@pytest.mark.parametrize("text", [b"\\u0000\\u0007", b"\\ufffe", b"\\ud83d\\ude00", b"e\\u0301"])
async def test_18_odd_characters_are_text(
    stack: Stack, http: httpx.AsyncClient, text: bytes
) -> None:
    assert (await http.post(CHAT, content=TEXT % text)).status_code == 200
    sent = json.loads(stack.tokenizer.encoded[-1].chat.messages_json)
    assert sent[0]["content"] == json.loads(b'"%b"' % text)


@pytest.mark.parametrize(
    ("row", "given", "code"),
    [
        (1, [], "missing_api_key"),
        (2, ["Basic eDp5"], "invalid_api_key"),
        (2, ["Bearer "], "invalid_api_key"),
        (2, ["Bearer bt-wrong"], "invalid_api_key"),
        (2, [f"Bearer {KEY}", f"Bearer {KEY}"], "invalid_api_key"),
        (2, [f"Bearer {KEY}x"], "invalid_api_key"),
        (2, ["Bearer " + "x" * 10_000], "invalid_api_key"),
        (2, ["Bearer \xff\xfe"], "invalid_api_key"),
    ],
)
async def test_a_key_that_is_none(stack: Stack, row: int, given: list[str], code: str) -> None:
    lines = b"".join(b"authorization: %b\r\n" % value.encode("latin-1") for value in given)
    for start in (b"POST " + CHAT.encode(), b"GET /v1/models"):
        head = b"%b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%b" % (start, lines)
        answer = await exchange(stack, head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == code


@pytest.mark.parametrize("path", ["/v1%2fmodels", "/v1/chat%2Fcompletions", "/v1%2f..%2fmetrics"])
async def test_4_an_encoded_slash_is_no_slash(stack: Stack, path: str) -> None:
    for method in (b"GET", b"POST"):
        head = b"%b %b HTTP/1.1\r\nhost: x\r\n" % (method, path.encode()) + AUTHORIZATION
        answer = await exchange(stack, head + b"connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404 "), answer


@pytest.mark.parametrize(
    ("value", "status"),
    [("-1", 400), ("text", 400), ("nan", 400), ("0", 504), ("1e9", 200), ("90", 200)],
)
@pytest.mark.parametrize(
    "header", ["x-request-timeout-s", "x-first-token-timeout-s", "x-token-gap-timeout-s"]
)
async def test_40_deadlines(http: httpx.AsyncClient, header: str, value: str, status: int) -> None:
    headers = {header: value}
    answer = await http.post(CHAT, json=GOOD[CHAT], headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "zzz"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"baggage": "a=b," * 2500},
        {"x-request-id": "a b"},
        {"x-request-id": "a" * 65},
        {"range": "bytes=" + ",".join(["0-"] * 1000)},
        {"last-event-id": "5"},
    ],
)
async def test_11_13_54_headers_that_are_ignored(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await http.post(CHAT, json=GOOD[CHAT], headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] != headers.get("x-request-id")


async def test_41_42_limits(stack: Stack, http: httpx.AsyncClient) -> None:
    cases: list[tuple[Any, int, str]] = [
        (LimitExceeded("over", retry_after_s=1.2), 429, "true"),
        (LimitExceeded("spent", reason="insufficient_quota"), 429, "false"),
        (InvalidRequest("too large", reason="request_exceeds_limit"), 400, "false"),
    ]
    for failure, status, retry in cases:
        stack.quota.reserve_failure = failure
        try:
            answer = await http.post(CHAT, json=GOOD[CHAT])
        finally:
            stack.quota.reserve_failure = None
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, failure.reason)
        assert answer.headers["x-should-retry"] == retry


async def exchange(stack: Stack, sent: bytes) -> bytes:
    """Everything that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


def request(headers: bytes = b"", body: bytes = BODY, *, length: bool = True) -> bytes:
    sized = b"content-length: %d\r\n" % len(body) if length else b""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + AUTHORIZATION
    return head + headers + sized + b"\r\n" + body


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        request(CHUNKED),
        request(b"content-length: 5\r\n"),
        request(b"content-length: -1\r\n", length=False),
        request(b"content-length: 9" + b"9" * 30 + b"\r\n", length=False),
        request(b"transfer-encoding: chunked, identity\r\n", length=False),
        request(b"transfer-encoding: xchunked\r\n", length=False),
        request(b"transfer-encoding : chunked\r\n", length=False),
        request(CHUNKED, b"%x\n%b\n0\n\n" % (len(BODY), BODY), length=False),
        request(b"x-a: b\r\n c: d\r\n"),
        request(b"x-request-id: a\nb: c\r\n"),
        request(b"x-request-id: a\x00b\r\n"),
        request().replace(b"\r\n", b"\n"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_9_ambiguous_framing_is_refused_and_what_follows_never_parsed(
    stack: Stack, http: httpx.AsyncClient, sent: bytes
) -> None:
    answer = await exchange(stack, sent + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.mark.parametrize(
    "headers",
    [
        b"x-large: " + b"a" * 61 * 1024 + b"\r\n",
        b"".join(b"x-%d: a\r\n" % number for number in range(101)),
        b"".join(b"x-%d: %b\r\n" % (number, b"a" * 1024) for number in range(61)),
    ],
)
async def test_10_large_heads_are_431(
    stack: Stack, http: httpx.AsyncClient, headers: bytes
) -> None:
    labels = {"reason": "headers_too_large", "status": "431"}
    before = REGISTRY.get_sample_value("baton_gateway_refused_requests_total", labels) or 0
    answer = await exchange(stack, request(headers))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"headers_too_large"' in answer
    counted = REGISTRY.get_sample_value("baton_gateway_refused_requests_total", labels)
    assert counted == before + 1


async def test_10_an_endless_header_is_cut_off(stack: Stack, http: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-large: ")
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(60):
            while True:
                writer.write(b"a" * 64 * 1024)
                await writer.drain()
    writer.close()
    assert reader.exception() or await reader.read()


async def test_10_headers_within_the_limits_pass_also_on_a_connection_in_use(
    http: httpx.AsyncClient,
) -> None:
    headers = {f"x-{number}": "a" * 1500 for number in range(35)}
    for _ in range(3):
        answer = await http.post(CHAT, json=GOOD[CHAT], headers=headers)
        assert answer.status_code == 200


async def test_6_a_declared_body_over_the_limit_is_refused_unread(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    head = request(b"content-length: 8388609\r\nconnection: close\r\n", b"", length=False)
    assert (await exchange(stack, head)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("headers", [b"", b"expect: 100-continue\r\n"])
async def test_7_a_body_that_stalls_is_a_408_and_the_end_of_its_connection(
    stack: Stack, http: httpx.AsyncClient, headers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_request, "BODY_TIMEOUT_S", 0.1)
    answer = await exchange(stack, request(headers + b"content-length: 10\r\n", b"", length=False))
    assert b"HTTP/1.1 408 " in answer


async def test_8_a_head_that_stalls_ends_its_connection(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.1)
    assert await exchange(stack, b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ") == b""
