"""The pair of vLLM's servers: what each is told, and what the proxy before them passes on."""

import json
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from bench.contenders import Parity
from bench.peers.nixl_proxy import Proxy
from bench.serving.nixl_pair import pair_command

PATH = "/v1/chat/completions"
TICKET = {"remote_engine_id": "p", "remote_block_ids": [1, 2]}


class Server:
    """One of the two, which keeps what it was asked."""

    def __init__(self, answer: dict[str, Any], status: int = 200) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._answer = answer
        self._status = status

    @property
    def client(self) -> httpx.AsyncClient:
        app = Starlette(routes=[Route(PATH, self.chat, methods=["POST"])])
        transport = httpx.ASGITransport(app)
        return httpx.AsyncClient(transport=transport, base_url="http://server")

    async def chat(self, request: Request) -> JSONResponse:
        self.bodies.append(await request.json())
        return JSONResponse(self._answer, self._status)


def ask(prefill: Server, decode: Server) -> httpx.Response:
    proxy = Proxy(prefill.client, decode.client)
    routes = [Route(PATH, proxy.chat, methods=["POST"])]
    body = {"messages": [], "max_tokens": 9, "stream": True, "stream_options": {}}
    response: httpx.Response = TestClient(Starlette(routes=routes)).post(PATH, json=body)
    return response


def test_what_the_prefill_server_says_of_its_blocks_goes_to_the_decode_server() -> None:
    prefill, decode = Server({"kv_transfer_params": TICKET}), Server({"text": "all of it"})
    assert ask(prefill, decode).json() == {"text": "all of it"}
    (first,), (second,) = prefill.bodies, decode.bodies
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert (first["max_tokens"], first["stream"]) == (1, False)
    assert "stream_options" not in first
    assert second["kv_transfer_params"] == TICKET
    assert (second["max_tokens"], second["stream"]) == (9, True)


def test_a_refusal_of_the_prefill_server_is_the_answer() -> None:
    prefill, decode = Server({"error": "too long"}, 400), Server({})
    refused = ask(prefill, decode)
    assert (refused.status_code, refused.json()) == (400, {"error": "too long"})
    assert not decode.bodies


def test_both_servers_have_half_of_the_threads_and_ports_of_their_own(tmp_path: Path) -> None:
    *_, text = pair_command(1, ["serve", "m"], Parity(2, 2**30), tmp_path)
    servers = json.loads(text)["servers"]
    assert [server["environment"]["OMP_NUM_THREADS"] for server in servers] == ["1", "1"]
    ports = {server["port"] for server in servers}
    ports |= {server["environment"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] for server in servers}
    assert len(ports) == 4
    for server in servers:
        assert server["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
        config = json.loads(server["argv"][server["argv"].index("--kv-transfer-config") + 1])
        assert (config["kv_connector"], config["kv_buffer_device"]) == ("NixlConnector", "cpu")
