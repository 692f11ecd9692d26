"""Tokens of an issuer and the safety hook from HTTP to HTTP: each service at its own socket."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from baton.wire.key_registry import identity_digest
from examples.word_list_hook import WordListServer
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.unit.gateway.fakes import KEY, SECRET

ISSUER = "https://login.example"
SIGNING_KEY, OTHER_KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
GOOD = "This sentence is harmless, and long enough to be judged alone."
BAD = " This one has a forbidden word in it, and it is judged as well."


@pytest.fixture
def jwks_url() -> Iterator[str]:
    """The keys of an issuer."""
    key = {**ECAlgorithm.to_jwk(SIGNING_KEY.public_key(), as_dict=True), "kid": "k1", "use": "sig"}

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"keys": [key]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    yield from served(HTTPServer(("127.0.0.1", 0), Keys), "/keys")


@pytest.fixture
def hook_url() -> Iterator[str]:
    """A service that refuses a word."""
    yield from served(WordListServer(["forbidden"], port=0), "/v1/moderations")


def served(server: HTTPServer, path: str) -> Iterator[str]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}{path}"
        server.shutdown()
        thread.join()


def token(key: ec.EllipticCurvePrivateKey = SIGNING_KEY, **changes: Any) -> str:
    claims = {"iss": ISSUER, "aud": "baton", "exp": time.time() + 300, "tenant": "acme", **changes}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": "k1"})


async def ask(stack: Stack, bearer: str, content: str = "hi", **fields: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": content}], **fields}
    headers = {"authorization": f"Bearer {bearer}"}
    async with httpx.AsyncClient(timeout=60) as client:
        url = f"{stack.root}/v1/chat/completions"
        return await client.post(url, json=body, headers=headers)


async def test_a_token_whose_issuer_has_the_key_is_a_way_in(tmp_path: Path, jwks_url: str) -> None:
    settings = {"jwt_issuer": ISSUER, "jwt_audience": "baton", "jwt_jwks_url": jwks_url}
    async with running_stack(tmp_path, **settings) as stack:
        await until_ready(stack)
        stack.quota.digests.add(identity_digest(SECRET, "jwt:acme"))
        answer = await ask(stack, token())
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        assert (await ask(stack, KEY)).status_code == 200
        wrong = [token(OTHER_KEY), token(aud="other"), token(exp=1), token(tenant="unknown")]
        assert [(await ask(stack, each)).status_code for each in wrong] == [401] * 4


async def test_an_answer_ends_before_the_piece_that_the_hook_refuses(
    tmp_path: Path, hook_url: str
) -> None:
    async with running_stack(tmp_path, safety_url=hook_url) as stack:
        await until_ready(stack)
        for worker in stack.workers.values():
            worker.texts = [f"{GOOD}{BAD} More follows."]
        refused = await ask(stack, KEY, "a forbidden question")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")
        answer = await ask(stack, KEY, stream=True)
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        choices = [each for event in events[:-1] for each in json.loads(event)["choices"]]
        assert "".join(each["delta"].get("content") or "" for each in choices) == GOOD
        assert choices[-1]["finish_reason"] == "content_filter"
