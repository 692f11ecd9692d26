"""Requests that schemathesis makes from /openapi.json, valid ones and invalid ones: each is
answered with a status, a content type and a body that the document describes.

With BATON_TEST_LONG there are 10,000 requests.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.simulation.hostile.long_counts import examples, in_parts
from tests.unit.gateway.hostile.described import described
from tests.unit.gateway.stored.clients import Answered, Caller, with_store

NUM_EXAMPLES = 150
CHECKS: list[Any] = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(described())
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}
# These take nothing that could be wrong.
WITHOUT_INPUT = ("GET /", "GET /healthz", "GET /readyz", "GET /health")
UNREAD_HEADERS = ("host", "content-length", "authorization", "cookie")


def prepared(case: Any) -> requests.PreparedRequest:
    given = case.as_transport_kwargs(base_url="http://gateway")
    given.pop("cookies", None)
    return requests.Request(**given).prepare()


def send(sent: requests.PreparedRequest) -> Answered:
    url, body = urlsplit(sent.url), sent.body or b""
    headers = {name.lower(): str(value) for name, value in sent.headers.items()}
    own = {name: value for name, value in headers.items() if name not in UNREAD_HEADERS}

    async def scenario(caller: Caller) -> Answered:
        caller.fleet.worker.texts = ["Hi"]
        target = f"{url.path}?{url.query}"
        content = body.encode() if isinstance(body, str) else body
        return await caller.send(str(sent.method), target, content, own)

    return with_store(scenario)


@in_parts
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("label", [each for each in OPERATIONS if each not in WITHOUT_INPUT])
def test_what_is_answered_is_described(
    label: str, mode: GenerationMode, record_property: Callable[[str, object], None]
) -> None:
    num_sent = 0

    @examples(NUM_EXAMPLES, 2)
    @given(OPERATIONS[label].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "demo"
        sent = prepared(case)
        answered = send(sent)
        # A client may give a request no time.
        assert answered.status < 500 or answered.status == 504, answered.body
        headers = {name: [value] for name, value in answered.headers.items()}
        response = schemathesis.Response(
            answered.status, headers, answered.body, sent, elapsed=0.01, verify=False
        )
        case.validate_response(response, checks=CHECKS)
        nonlocal num_sent
        num_sent += 1

    check()
    record_property("described requests", num_sent)
