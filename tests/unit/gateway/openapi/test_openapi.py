"""/openapi.json says what the gateway takes and gives, and /docs shows it."""

import asyncio
import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from baton.wire.failures import REASONS
from services.gateway.openapi.routes import PATHS
from tests.unit.gateway.batches.batch_client import BatchClient, line, with_batches
from tests.unit.gateway.hostile.bodies import EXAMPLES
from tests.unit.gateway.hostile.described import described, faults, is_described, operation_of
from tests.unit.gateway.stored.clients import Caller, with_store

HI = [{"role": "user", "content": "hi"}]


def references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(references, node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
    return own.union(*map(references, node.values()))


def test_the_description_is_served_without_a_key_and_built_once() -> None:
    async def scenario(caller: Caller) -> None:
        no_key = {"authorization": ""}
        first = await caller.call("GET", "/openapi.json", headers=no_key)
        assert first.headers["content-type"] == "application/json"
        assert first.json == described()
        page = await caller.call("GET", "/docs", headers=no_key)
        assert page.status == 200
        assert page.headers["content-type"].startswith("text/html")
        assert not re.search(rb"https?://|src=", page.body), "nothing comes from another server"
        await asyncio.sleep(1)

    with_store(scenario)


def test_every_path_and_method_is_described() -> None:
    async def scenario(caller: Caller) -> None:
        served = {
            (route.path, method.lower())
            for route in caller.app._rest.routes
            for method in route.methods - {"HEAD"}
            if route.path not in PATHS
        }
        told = {(path, method) for path, each in described()["paths"].items() for method in each}
        # A parameter that may have slashes is one like others in OpenAPI.
        assert told == {(path.replace(":path}", "}"), method) for path, method in served}

    with_store(scenario)


def test_every_described_path_is_there() -> None:
    async def scenario(caller: Caller) -> None:
        for path, methods in described()["paths"].items():
            for method in methods:
                answer = await caller.call(method.upper(), path, {})
                assert b"no such path" not in answer.body
                assert answer.status != 405
                assert str(answer.status) in methods[method]["responses"]

    with_store(scenario)


def test_references_lead_somewhere_and_schemas_are_schemas() -> None:
    for reference in references(described()):
        node = described()
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    for schema in described()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_the_codes_of_failures_are_all_there() -> None:
    told = " ".join(each["description"] for each in described()["components"]["responses"].values())
    assert set(REASONS) - {"method_not_allowed"} <= set(re.findall(r"\w+", told))


@pytest.mark.parametrize("path", EXAMPLES)
def test_a_body_with_all_fields_is_allowed(path: str) -> None:
    needed, optional = EXAMPLES[path]
    assert not faults(path, json.dumps(needed | optional).encode())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HI, "temperature": 3}),
        ("/v1/chat/completions", {"messages": HI, "unheard_of": 1}),
        ("/v1/chat/completions", {"messages": HI, "functions": [{"name": "f"}]}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/completions", {"prompt": {}}),
        ("/v1/responses", {"input": [{"type": "web_search_call"}]}),
        ("/detokenize", {"tokens": [-1]}),
    ],
)
def test_what_is_refused_is_not_allowed(path: str, fields: dict[str, Any]) -> None:
    assert faults(path, json.dumps({"model": "m", **fields}).encode())


TOLD = {"return_token_ids": True, "prompt_logprobs": 1, "n": 2}
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HI, "logprobs": True, "top_logprobs": 2, **TOLD}),
        ("/v1/completions", {"prompt": "hi", "echo": True, "logprobs": 2, **TOLD}),
        ("/v1/completions", {"prompt": ["hi", "ho"], "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "include": ["message.output_text.logprobs"]}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2, "tools": TOOLS, "user": "u"}),
        ("/v1/responses", {"input": "hi", "background": True}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": HI}),
        ("/tokenize", {"prompt": "hi", "return_token_strs": True}),
        ("/detokenize", {"tokens": [104, 105]}),
        ("/v1/conversations", {"metadata": {"a": "b"}}),
    ],
)
def test_an_answer_has_the_fields_that_are_described(path: str, fields: dict[str, Any]) -> None:
    async def scenario(caller: Caller) -> None:
        body = fields if path == "/v1/conversations" else {"model": "demo", **fields}
        answer = await caller.call("POST", path, body)
        assert answer.status == 200, answer.body
        assert is_described(answer.body, operation_of("post", path).answer)
        await asyncio.sleep(1)

    with_store(scenario)


def test_what_is_fetched_has_the_fields_that_are_described() -> None:
    async def scenario(caller: Caller) -> None:
        made = (await caller.call("POST", "/v1/conversations", {"items": HI})).json["id"]
        response = (await caller.create(conversation=made)).json["id"]
        one, items = "/v1/conversations/{id}", "/v1/conversations/{id}/items"
        for method, path, name in (
            ("GET", "/v1/models", ""),
            ("GET", "/v1/models/{name}", "demo"),
            ("GET", "/", ""),
            ("GET", "/healthz", ""),
            ("GET", "/readyz", ""),
            ("GET", "/v1/responses/{id}", response),
            ("GET", "/v1/responses/{id}/input_items", response),
            ("DELETE", "/v1/responses/{id}", response),
            ("GET", one, made),
            ("GET", items, made),
            ("DELETE", one, made),
        ):
            answer = await caller.call(method, re.sub("{.*?}", name, path))
            assert answer.status == 200, path
            assert is_described(answer.body, operation_of(method.lower(), path).answer), path

    with_store(scenario)


def test_files_and_batches_have_the_fields_that_are_described() -> None:
    async def scenario(client: BatchClient) -> None:
        batch = await client.create([line()])
        await client.ended(batch)
        failed = await client.create(["{"])
        await client.ended(failed)
        call, file = client.caller.call, batch["input_file_id"]
        for method, path, name in (
            ("GET", "/v1/files", ""),
            ("GET", "/v1/files/{id}", file),
            ("GET", "/v1/batches", ""),
            ("GET", "/v1/batches/{id}", batch["id"]),
            ("GET", "/v1/batches/{id}", failed["id"]),
            ("POST", "/v1/batches/{id}/cancel", batch["id"]),
            ("DELETE", "/v1/files/{id}", file),
        ):
            answer = await call(method, path.replace("{id}", name))
            assert is_described(answer.body, operation_of(method.lower(), path).answer), answer.body
        uploaded = await client.upload("x")
        assert is_described(uploaded.body, operation_of("post", "/v1/files").answer)

    with_batches(scenario)


def test_the_input_of_a_response_may_name_an_item() -> None:
    item = {"type": "item_reference", "id": "msg_1"}
    body = {"model": "m", "input": [item]}
    assert not faults("/v1/responses", json.dumps(body).encode())
    assert faults("/v1/responses", json.dumps({**body, "input": [item | {"text": "a"}]}).encode())
