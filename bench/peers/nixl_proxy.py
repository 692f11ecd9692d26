"""One prefill and one decode server of vLLM's behind a proxy. A peer's part: vLLM has no router of
its own for such a pair, and tells clients' proxies what to do.

`python -m bench.peers.nixl_proxy OPTIONS`, a JSON object: `servers`, for each of the two `argv`,
`environment` and `port`, and the proxy's `port`. As vLLM's documentation has it, each request goes
to the prefill server first, for one token; what that says of its blocks goes to the decode server
with the request, whose answer is passed on as it comes.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from baton.localstack.ports import LOOPBACK
from baton.system.parent_death import die_with_parent

# What a proxy says to the prefill server (vLLM's documentation of NixlConnector).
_HOLD = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_ONE_TOKEN = {"stream": False, "max_tokens": 1, "max_completion_tokens": 1}
_NO_LIMIT = httpx.Limits(max_connections=None, max_keepalive_connections=None)


class Proxy:
    """Sends each request to both servers, one after the other."""

    def __init__(self, prefill: httpx.AsyncClient, decode: httpx.AsyncClient) -> None:
        self._prefill, self._decode = prefill, decode

    async def health(self, request: Request) -> Response:
        """200 when both servers are ready."""
        for client in (self._prefill, self._decode):
            try:
                answer = await client.get("/health")
            except httpx.TransportError:
                return Response(status_code=503)
            if answer.status_code != 200:
                return Response(status_code=503)
        return Response()

    async def chat(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        first = {k: v for k, v in body.items() if k != "stream_options"}
        first |= {**_ONE_TOKEN, "kv_transfer_params": _HOLD}
        held = await self._prefill.post(request.url.path, json=first)
        if held.status_code != 200:
            return Response(held.content, held.status_code)
        second = body | {"kv_transfer_params": held.json()["kv_transfer_params"]}
        asked = self._decode.build_request("POST", request.url.path, json=second)
        answer = await self._decode.send(asked, stream=True)
        kind = answer.headers.get("content-type")
        return StreamingResponse(_pass_on(answer), answer.status_code, media_type=kind)


async def _pass_on(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def main(options: dict[str, Any]) -> None:
    """Start both servers, and serve until one of them has ended or SIGINT comes."""
    prefill, decode = options["servers"]
    for server in (prefill, decode):
        argv, environment = server["argv"], server["environment"]
        subprocess.Popen(argv, env=environment, preexec_fn=die_with_parent)
    urls = [f"http://{LOOPBACK}:{server['port']}" for server in (prefill, decode)]
    proxy = Proxy(*(httpx.AsyncClient(base_url=u, timeout=None, limits=_NO_LIMIT) for u in urls))
    routes = [
        Route("/health", proxy.health),
        Route("/v1/chat/completions", proxy.chat, methods=["POST"]),
    ]
    application = Starlette(routes=routes)
    uvicorn.run(application, host=LOOPBACK, port=options["port"], log_level="warning")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
