"""One response that runs in the background: the sink of its answer, and its record in the store.

The gateway that took it writes its state and its events into the store, where every gateway reads
them. It says there, too, that it is alive, and sees there whether the response was cancelled or
deleted. New text waits for FLUSH_S, so that a stream makes few writes.
"""

import asyncio
import contextlib
from dataclasses import replace

import msgspec

from baton.runtime import logs
from baton.wire.failures import BatonError, Cancelled, Unavailable
from services.gateway.openai.generation import Delta, GenerationRequest, Identity, Thread, Usage
from services.gateway.openai.responses_answer import ResponsesAnswer, response_id
from services.gateway.request.incoming import Head
from services.gateway.stored.reading import ended, status_of
from services.gateway.stored.store import TOO_LARGE, EventBatch, Fields, Store, too_large
from services.gateway.stored.threads import add_to_conversation, input_of

FLUSH_S = 0.05
# The longest time without a word to the store.
BEAT_S = 1.0
# The end of a response is told to a store that does not answer so often, BEAT_S apart.
_LAST_TRIES = 10
_log = logs.get("background")


class _Carrier(msgspec.Struct):
    """An event that carries the response."""

    response: msgspec.Raw = msgspec.Raw()


class BackgroundRun:
    """One response in the background, as the sink of its answer. `task`: the one that computes it.

    Its first methods are the pipeline's. An attribute for each thing that its record needs, hence
    many.
    """

    def __init__(self, store: Store, identity: Identity, request: GenerationRequest) -> None:
        assert request.thread is not None
        self.response_id = response_id(identity)
        self.thread: Thread = request.thread
        self.streams = request.stream
        self._store = store
        self._identity = identity
        self._answer = ResponsesAnswer(identity, request)
        self._deltas: list[Delta] = []
        # Encoded events that the store has not taken yet.
        self._unwritten = b""
        # The response as it was created.
        self._begun = b""
        self._news = asyncio.Event()
        self._is_created = asyncio.Event()
        self._writing = asyncio.Lock()
        self.has_ended = False

    async def started(self, head: Head) -> None:
        await self._is_created.wait()
        events = self._answer.opening()
        self._add(events)
        await self._write({"status": "in_progress", "response": _response_in(events)})

    async def deltas(self, batch: list[Delta]) -> None:
        self._deltas += batch
        if self.streams:
            self._news.set()

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        self._deltas += batch
        if self.streams:
            self._news.set()
        return True

    async def finished(self, usage: Usage, head: Head) -> None:
        self._encode()
        last = b"".join(self._answer.closing(usage))
        self._add(last)
        await self._end(_response_in(last))

    async def failed(self, error: BatonError) -> None:
        """End the response with this failure, once it is created."""
        await self._is_created.wait()
        if isinstance(error, Cancelled):
            await self._end_as("cancelled", None)
            return
        self._encode()
        last = b"".join(self._answer.failure(error))
        self._add(last)
        await self._end(_response_in(last))

    async def create(self) -> bytes:
        """Write the record of the response, and let it begin. Returns it as JSON. Raises
        InvalidRequest when it is too large, Unavailable."""
        thread = self.thread
        if len(thread.input_json) + len(thread.earlier_json) > self._store.max_object_bytes:
            raise too_large("input with all that stands before it")
        events = self._answer.queued()
        response = _response_in(events)
        fields: dict[str, str | bytes] = {"status": "queued", "response": response}
        fields["input"] = input_of(self.thread, self._identity)
        batch = None
        if self.streams:
            fields["has_events"] = b"1"
            batch = EventBatch(self._answer.last_number, events)
        tenant = self.thread.tenant
        if await self._store.go_on(tenant, self.response_id, fields, batch, "any"):
            raise too_large("input with all that stands before it")
        self._begun = response
        self._is_created.set()
        return response

    async def follow(self) -> str:
        """Write what is new, and say that this gateway is alive, until the response has ended.
        Returns the status that somebody else gave it, `gone` when it was deleted; else nothing."""
        await self._is_created.wait()
        while not self.has_ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._news.wait()
            self._news.clear()
            if self.has_ended:
                break
            self._encode()
            status = await self._write({})
            if self.has_ended:
                break
            if status:
                self.stop()
                return status
            await asyncio.sleep(FLUSH_S)
        return ""

    def stop(self) -> None:
        """Write nothing more."""
        self.has_ended = True
        self._news.set()

    def _encode(self) -> None:
        if self._deltas:
            deltas, self._deltas = _merged(self._deltas), []
            self._add(self._answer.deltas(deltas))

    def _add(self, events: bytes) -> None:
        if self.streams:
            self._unwritten += events

    async def _write(self, fields: Fields) -> str:
        """Write fields and the new events. Returns the status that stood against it. While the
        store is away, events wait."""
        async with self._writing:
            events, number = self._unwritten, self._answer.last_number
            batch = EventBatch(number, events) if events else None
            try:
                status = await self._store.go_on(
                    self.thread.tenant, self.response_id, fields, batch
                )
            except Unavailable:
                return ""
            self._unwritten = self._unwritten[len(events) :]
            return status

    async def _end(self, response: bytes) -> None:
        """Write the last events and the whole response. It is given up when the store stays away:
        then it ends as one whose gateway has died."""
        was_ended = await self._write({})
        if not was_ended and status_of(response) != "failed":
            await self._add_to_conversation(response)
        self.stop()
        fields: Fields = {"status": status_of(response), "response": response}
        async with self._writing:
            events = EventBatch(self._answer.last_number, self._unwritten)
            for _ in range(_LAST_TRIES):
                try:
                    refused = await self._store.go_on(
                        self.thread.tenant,
                        self.response_id,
                        fields,
                        events if events.text else None,
                    )
                except Unavailable:
                    await asyncio.sleep(BEAT_S)
                else:
                    break
            else:
                refused = "store_unavailable"
        if refused == TOO_LARGE:
            await self.end_too_large()
        elif refused:
            _log.warning("not_kept", request_id=self._identity.request_id, reason=refused)

    async def end_too_large(self) -> None:
        """End the response as failed: it has become larger than one may be."""
        error = {"code": "server_error", "message": "body_too_large: larger than this server keeps"}
        await self._end_as("failed", error)

    async def _end_as(self, status: str, error: dict[str, str] | None) -> None:
        """End the response without output."""
        self.stop()
        fields = ended(self._begun, status, error)
        with contextlib.suppress(Unavailable):
            await self._store.write(self.thread.tenant, self.response_id, fields, "open")

    async def _add_to_conversation(self, response: bytes) -> None:
        try:
            await add_to_conversation(self._store, self.thread, self._identity, response)
        except Unavailable as error:
            _log.warning(
                "not_in_conversation", request_id=self._identity.request_id, reason=error.reason
            )


def _response_in(events: bytes) -> bytes:
    """The response that the last event that has one carries."""
    for event in reversed(events.split(b"\n\n")[:-1]):
        _, _, data = event.partition(b"\ndata: ")
        carrier = msgspec.json.decode(data, type=_Carrier)
        if carrier.response:
            return bytes(carrier.response)
    raise AssertionError("no event carries the response")


def _merged(deltas: list[Delta]) -> list[Delta]:
    """The same text in as few deltas as it takes: each becomes an event of its own."""
    merged = deltas[:1]
    for delta in deltas[1:]:
        before = merged[-1]
        if before.calls or delta.calls:
            merged.append(delta)
        else:
            merged[-1] = replace(
                delta, text=before.text + delta.text, logprobs=before.logprobs + delta.logprobs
            )
    return merged
