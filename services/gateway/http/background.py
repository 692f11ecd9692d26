"""Responses in the background: they go on when their client leaves.

The request begins like any other one, so that what is wrong with it is refused at once. When it is
ready to run, its answer's sink is a record in the store instead of the client, and the client gets
that record, or its events as they come.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from baton.runtime import logs
from baton.runtime.cutoff import CutOff, Cutoff
from baton.wire.failures import BatonError, Unavailable
from services.gateway.http.response import EVENT_STREAM, STREAM_HEADERS
from services.gateway.http.sink import HttpSink
from services.gateway.openai.generation import GenerationRequest, Identity
from services.gateway.request.incoming import AnswerSink, IncomingRequest, Sink
from services.gateway.request.pipeline import Pipeline
from services.gateway.stored.background_run import BackgroundRun
from services.gateway.stored.reading import StoredResponses
from services.gateway.stored.store import TOO_LARGE, Store

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
_log = logs.get("background")


class DetachingSink:
    """The client of a request for a response, until it runs in the background; then nobody."""

    def __init__(self, client: Sink, store: Store) -> None:
        self._client = client
        self._store = store
        self._gone_reason = "cancelled"
        self.run: asyncio.Future[BackgroundRun] = asyncio.Future()

    def opened(self, identity: Identity, request: GenerationRequest) -> AnswerSink:
        if request.thread is None or not request.thread.is_background:
            return self._client.opened(identity, request)
        if self.run.done():  # its model was replaced before its first token
            return self.run.result()
        run = BackgroundRun(self._store, identity, request)
        self.run.set_result(run)
        return run

    def give_up(self, reason: str) -> None:
        """Note that the request is about to be cancelled for this reason."""
        self._gone_reason = reason

    @property
    def gone_reason(self) -> str:
        return self._gone_reason if self.run.done() else self._client.gone_reason

    @property
    def gone_s(self) -> float | None:
        return None if self.run.done() else self._client.gone_s

    @property
    def has_left(self) -> bool:
        return not self.run.done() and self._client.has_left


class Background:
    """Serves requests for responses, some of which go on in the background. `spawn` runs what goes
    on as an open request, and is waited for when this gateway leaves; `cutoff` ends it."""

    def __init__(self, pipeline: Pipeline, store: Store, spawn: Spawn, cutoff: Cutoff) -> None:
        self._pipeline = pipeline
        self._store = store
        self._stored = StoredResponses(store)
        self._spawn = spawn
        self._cutoff = cutoff

    async def serve(self, client: HttpSink, incoming: IncomingRequest, sink: Sink) -> None:
        """Serve one request, or answer its client and let it go on. `sink` is the client as the
        pipeline sees it. Raises BatonError."""
        detaching = DetachingSink(sink, self._store)
        # It is waited for here, or by the one who keeps the record.
        serving = asyncio.create_task(self._run(incoming, detaching))
        try:
            either: set[asyncio.Future[Any]] = {serving, detaching.run}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not detaching.run.done():
                return await serving
            run = detaching.run.result()
            created = await run.create()
        except BaseException:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            raise
        self._spawn(self._follow(run, serving))
        await self._answer(run, created, client)

    async def _answer(self, run: BackgroundRun, created: bytes, client: HttpSink) -> None:
        response = client.response
        response.outlives_client = True
        if not run.streams:
            await response.whole(200, [created], client.headers())
            return
        await response.start(200, EVENT_STREAM, {**STREAM_HEADERS, **client.headers()})
        async for events in self._stored.follow(run.thread.tenant, run.response_id, -1):
            await response.write(events)
        await response.end()

    async def _run(self, incoming: IncomingRequest, sink: DetachingSink) -> None:
        try:
            async with self._cutoff.guard(lambda: sink.give_up("draining")):
                await self._pipeline.run(incoming, sink)
        except CutOff:
            await self._fail(sink, Unavailable("this gateway is leaving", reason="draining"))
        except BatonError as error:
            await self._fail(sink, error)
        finally:
            if sink.run.done():
                sink.run.result().stop()

    async def _fail(self, sink: DetachingSink, error: BatonError) -> None:
        if not sink.run.done():
            raise error
        await sink.run.result().failed(error)

    async def _follow(self, run: BackgroundRun, serving: asyncio.Task[None]) -> None:
        status = await run.follow()
        if status:
            _log.info("stopped", response_id=run.response_id, reason=status)
            serving.cancel()
        await asyncio.wait({serving})
        if status == TOO_LARGE:
            await run.end_too_large()
        bug = None if serving.cancelled() else serving.exception()
        if isinstance(bug, Exception):
            _log.bug("background_failed", bug, request_id=run.response_id)
