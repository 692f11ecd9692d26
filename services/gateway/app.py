"""The HTTP edge: raw ASGI on the generating endpoints, starlette for the rest.

Each generating request runs in a task group with two companions: one waits on `receive()` for the
client to leave (a send never fails), one keeps a silent stream alive and notices a stalled client.
Failures become bodies in http/refusals.py.
"""

import asyncio
import re
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.runtime import logs
from baton.runtime.cutoff import CutOff, Cutoff
from baton.wire.failures import BatonError, Cancelled, Overloaded
from baton.wire.metadata import REQUEST_ID
from services.gateway.clients.protocols import CallContext
from services.gateway.endpoints import ENDPOINTS
from services.gateway.gateway import Gateway
from services.gateway.http.background import Background
from services.gateway.http.idempotency import KeptAnswers, KeyedAnswers, KeyedRequest, Run
from services.gateway.http.protocol import ABORT_KEY, HAS_LEFT_KEY, WRITER_KEY
from services.gateway.http.refusals import baton_error, draining, http_error, no_such_path, refuse
from services.gateway.http.request import (
    CLIENT_ID_HEADER,
    FIRST_TOKEN_HEADER,
    JSON,
    OWN_HEADERS_KEY,
    TOKEN_GAP_HEADER,
    TOTAL_HEADER,
    Headers,
    Receive,
    RequestBody,
    Scope,
    Send,
    authorization_of,
    client_address_of,
    idempotency_key_of,
    new_request_id,
    own_headers,
    timeout_of,
    wants_explanation,
)
from services.gateway.http.response import STALL_S, HttpResponse
from services.gateway.http.sink import HttpSink
from services.gateway.http.stored_routes import stored_routes
from services.gateway.http.trace_border import TraceBorder
from services.gateway.identity.certificates import Certificates
from services.gateway.openai.endpoints import Endpoint
from services.gateway.openapi.routes import DescriptionApi
from services.gateway.request.incoming import IncomingRequest
from services.gateway.request.pipeline import AUTHENTICATE_TIMEOUT_S
from services.gateway.stored.shared_answers import SharedAnswers
from services.gateway.tenants.auth import LastingKey
from services.gateway.tenants.principal import Principal, VouchedIdentity

# Envoy's health check then prefers others, also those of other regions.
FULL_HEADER = "x-envoy-degraded"
# Where a person sees the request's spans.
TRACE_URL_HEADER = "x-trace-url"
# What the ids of answers begin with, before the request's.
_ID_PREFIX = re.compile("^(chatcmpl|cmpl|resp|msg)[-_](?=req_)")
_MODEL_NAME_PATH = b"/v1/models/"
_ABOUT = msgspec.json.encode(
    {
        "name": "baton",
        "about": "language models, as OpenAI's and Anthropic's clients ask them",
        "paths": [*ENDPOINTS, "/v1/models"],
    }
)

_log = logs.get("app")


_NO_TRUST = TraceBorder()


class _ClientGone(Exception):
    """Ends the task group of a request whose client left."""


class App:
    """The ASGI application. Half of its attributes are the limits that the operator sets."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        max_body_bytes: int,
        max_open_requests: int,
        deadline_s: float,
        stall_s: float = STALL_S,
        num_proxies: int = 0,
        certificates: Certificates | None = None,
        trace_url: str = "",
        traces: TraceBorder = _NO_TRUST,
    ) -> None:
        self._gateway = gateway
        self._trace_url = trace_url
        self._max_body_bytes = max_body_bytes
        self._max_open_requests = max_open_requests
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        self._num_proxies = num_proxies
        self._traces = traces
        self._authorization = certificates.authorization if certificates else _key_of
        shared = None if gateway.store is None else SharedAnswers(gateway.store)
        self._answers = KeyedAnswers(KeptAnswers(gateway.clock), shared, gateway.clock)
        self._rest = self._starlette()
        self.num_open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._cutoff = Cutoff()
        self._tasks: set[asyncio.Task[None]] = set()
        self._background: Background | None = None
        if gateway.store is not None:
            self._background = Background(
                gateway.pipeline, gateway.store, self._spawn, self._cutoff
            )

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; False when one still is after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_open.wait()
        except TimeoutError:
            _log.warning("requests_not_ended", num_requests=self.num_open)
            return False
        return True

    def cut_off(self) -> None:
        """End all open requests, each with an error that says why."""
        self._cutoff.now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope["headers"])
        scope[OWN_HEADERS_KEY] = own_headers(headers, new_request_id(self._gateway.rng))
        endpoint = ENDPOINTS.get(scope["path"])
        if _hides_a_slash(scope):
            response = HttpResponse(send, scope[OWN_HEADERS_KEY], self._gateway.clock)
            await refuse(response, no_such_path(scope["path"]))
            return
        if endpoint is None or scope["method"] != "POST":
            await self._rest(scope, receive, send)
            return
        self._opened()
        try:
            await self._generate(endpoint, scope, receive, send)
        finally:
            self._closed()

    def _opened(self) -> None:
        self.num_open += 1
        self._none_open.clear()

    def _closed(self) -> None:
        self.num_open -= 1
        if not self.num_open:
            self._none_open.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what may outlive its HTTP request; it counts as an open request."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        self._opened()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        self._closed()

    async def _generate(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers, own = Headers(scope["headers"]), scope[OWN_HEADERS_KEY]
        request_id = own[REQUEST_ID]
        if name := endpoint.dialect.request_id_header:
            own[name] = request_id
        if self._trace_url:
            own[TRACE_URL_HEADER] = self._trace_url + request_id
        # It refers to the connection's state, which has the scope.
        writer = scope.pop(WRITER_KEY, None)
        response = HttpResponse(send, own, self._gateway.clock, self._stall_s, writer)
        body = RequestBody(headers, receive, self._max_body_bytes)
        has_left = scope.get(HAS_LEFT_KEY, _is_not_known)
        sink = HttpSink(response, endpoint, has_left)
        run: Run = self._gateway.pipeline.run
        if self._background is not None and endpoint.name == "responses":
            run = partial(self._background.serve, sink)
        try:
            self._check_open()
            if has_left():
                raise Cancelled("the client left")
            total_s = timeout_of(headers, TOTAL_HEADER)
            incoming = IncomingRequest(
                request_id=request_id,
                client_request_id=own.get(CLIENT_ID_HEADER, ""),
                endpoint=endpoint,
                deadline_s=self._deadline_s if total_s is None else total_s,
                first_token_s=timeout_of(headers, FIRST_TOKEN_HEADER),
                token_gap_s=timeout_of(headers, TOKEN_GAP_HEADER),
                authorization=self._authorization(scope, headers),
                read_body=body.read,
                num_body_bytes=body.num_told_bytes,
                traceparent=self._traces.parent(headers),
                links=self._traces.links(headers),
                route=scope["path"],
                client_address=client_address_of(scope, self._num_proxies),
                wants_explanation=wants_explanation(headers),
                follow=sink.follow,
            )
            if key := idempotency_key_of(headers):
                keyed = KeyedRequest(key, self._answers)
                run = partial(keyed.run, run, response)
        except BatonError as error:
            _log.info("refused", request_id=request_id, reason=error.reason)
            await refuse(response, error, endpoint.dialect)
            return
        await self._run(run, incoming, sink, self._client_left(sink, body, receive))
        sink.forget()
        if sink.has_stalled:
            scope.get(ABORT_KEY, _nothing)()

    async def _run(
        self,
        run: Run,
        incoming: IncomingRequest,
        sink: HttpSink,
        client_left: Coroutine[Any, Any, None],
    ) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                companions = [
                    tasks.create_task(client_left),
                    tasks.create_task(sink.watch()),
                ]
                try:
                    async with self._cutoff.guard(partial(sink.give_up, "draining")):
                        await run(incoming, sink)
                except CutOff:
                    await sink.failed(draining())
                except BatonError as error:
                    await sink.failed(error)
                for task in companions:
                    task.cancel()
        except* _ClientGone:
            _log.info("client_gone", request_id=incoming.request_id)
        except* BatonError:
            _log.info("client_gone", request_id=incoming.request_id, reason=sink.gone_reason)

    async def _client_left(self, sink: HttpSink, body: RequestBody, receive: Receive) -> None:
        """Raise _ClientGone when the client leaves. Until the body is read, its reader notices. At
        the end of a response the server says that it left; what follows goes on then."""
        await body.was_read.wait()
        while (await receive())["type"] != "http.disconnect":
            pass
        if sink.response.ended:
            return
        sink.gone_s = self._gateway.clock.now()
        raise _ClientGone

    def _check_open(self) -> None:
        if self.num_open > self._max_open_requests:
            raise Overloaded(
                f"{self._max_open_requests} requests are open already", retry_after_s=1
            )

    def _starlette(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/", self._about),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                *stored_routes(self._gateway, self._principal, self._owner),
                *DescriptionApi(has_store=self._gateway.store is not None).routes(),
                Route("/v1/requests/{request_id}", self._cancel, methods=["DELETE"]),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                # As other servers of models call it.
                Route("/health", self._readyz),
                *(Route(path, self._never, methods=["POST"]) for path in ENDPOINTS),
            ],
            exception_handlers={HTTPException: http_error, BatonError: baton_error},
        )
        # A path is taken as it is: a slash too many is not guessed away by a redirect.
        app.router.redirect_slashes = False
        return app

    async def _about(self, request: Request) -> Response:
        return _json(request, _ABOUT)

    async def _models(self, request: Request) -> Response:
        principal = await self._principal(request)
        return _json(request, await self._gateway.cards.all(principal.allowed_models))

    async def _model(self, request: Request) -> Response:
        principal = await self._principal(request)
        name = request.path_params["name"]
        return _json(request, await self._gateway.cards.one(name, principal.allowed_models))

    async def _cancel(self, request: Request) -> Response:
        """End a running request by its id, or by that of its answer."""
        principal = await self._principal(request)
        request_id = _ID_PREFIX.sub("", request.path_params["request_id"])
        is_here = await self._gateway.cancel(request_id, principal.tenant, self._context(request))
        status = "cancelled" if is_here else "cancelling"
        content = msgspec.json.encode({"id": request_id, "object": "request", "status": status})
        return _json(request, content, 200 if is_here else 202)

    async def _healthz(self, request: Request) -> Response:
        return _json(request, b'{"status":"ok"}')

    async def _readyz(self, request: Request) -> Response:
        readiness = self._gateway.readiness.state()
        reasons = [*readiness.unready, *readiness.degraded]
        status = "unready" if readiness.unready else "degraded" if reasons else "ready"
        content = msgspec.json.encode({"status": status, "reasons": reasons})
        response = _json(request, content, 503 if readiness.unready else 200)
        if readiness.is_full:
            response.headers[FULL_HEADER] = "1"
        return response

    async def _never(self, request: Request) -> Response:
        raise AssertionError("POST on a generating endpoint does not come here")

    async def _principal(self, request: Request) -> Principal:
        headers, context = Headers(request.scope["headers"]), self._context(request)
        address = client_address_of(request.scope, self._num_proxies)
        authenticator = self._gateway.authenticator
        authorization = self._authorization(request.scope, headers)
        return await authenticator.authenticate(authorization, context, address)

    def _context(self, request: Request) -> CallContext:
        """The context of a call for a request that no model answers."""
        request_id = request.scope[OWN_HEADERS_KEY][REQUEST_ID]
        traceparent = self._traces.parent(Headers(request.scope["headers"]))
        return CallContext(request_id, AUTHENTICATE_TIMEOUT_S, traceparent)

    async def _owner(self, request: Request) -> LastingKey:
        authorization = self._authorization(request.scope, Headers(request.scope["headers"]))
        return await self._gateway.authenticator.lasting(authorization)


def _key_of(scope: Scope, headers: Headers) -> str | VouchedIdentity | None:
    return authorization_of(headers)


def _nothing() -> None:
    """Do nothing: this server has no connection to cut."""


def _is_not_known() -> bool:
    """False: without a connection to look at, `receive` alone tells when the client leaves."""
    return False


def _hides_a_slash(scope: Scope) -> bool:
    """True when the path has a slash that a proxy in front took for a character of a name. Only
    names of models may have one."""
    raw: bytes = scope.get("raw_path", b"")
    return b"%2f" in raw.lower() and not raw.startswith(_MODEL_NAME_PATH)


def _json(request: Request, body: bytes, status: int = 200) -> Response:
    return Response(body, status, request.scope[OWN_HEADERS_KEY], media_type=JSON)
