"""The threads of responses: what stands before an input is fetched, and what came of it is kept.

A stored response holds all items before its output, so that it outlives those it follows. A
response is kept before its client sees its end: the next request may name it. An answer whose
thread cannot be kept is given all the same.
"""

from dataclasses import replace

import msgspec

from baton.runtime import logs
from baton.wire.failures import BatonError, InvalidRequest, quoted
from baton.wire.v1 import tokenizer_pb2
from services.gateway.openai.generation import (
    ChatMessages,
    Delta,
    GenerationRequest,
    Identity,
    Thread,
    Usage,
)
from services.gateway.openai.responses import prompt_of
from services.gateway.openai.responses_answer import ResponsesAnswer, response_id
from services.gateway.request.deps import Encode
from services.gateway.request.incoming import AnswerSink, Head
from services.gateway.request.job import ValidRequest
from services.gateway.request.room import LARGE_BODY_BYTES, Bodies
from services.gateway.stored.items import named_items, output_items
from services.gateway.stored.reading import not_found, status_of
from services.gateway.stored.references import with_items
from services.gateway.stored.store import TOO_LARGE, Fields, Store
from services.gateway.stored.truncation import encode_fitting
from services.gateway.tenants.principal import Principal

_log = logs.get("store")


class StoredThreads:
    """The threads of one gateway's requests. `store`: None when this gateway keeps nothing."""

    def __init__(self, store: Store | None, bodies: Bodies) -> None:
        self._store = store
        self._bodies = bodies

    async def resolve(
        self, request: GenerationRequest, thread: Thread, principal: Principal
    ) -> GenerationRequest:
        """The request with the items that stand before its input. Raises InvalidRequest when they
        are not there, Unavailable."""
        store = self._store
        if store is None or not store.keeps(principal.tenant):
            return _without_store(request, thread)
        thread = msgspec.structs.replace(thread, tenant=principal.tenant)
        is_continued = bool(thread.previous_response_id or thread.conversation_id)
        if not is_continued and not thread.has_references:
            return replace(request, thread=thread)
        if thread.has_references:
            thread = await with_items(store, thread)
        if is_continued:
            earlier = await _earlier(store, thread)
            thread = msgspec.structs.replace(thread, earlier_json=earlier)
        prompt = request.prompt
        assert isinstance(prompt, ChatMessages)
        turns = await self._turns(request, thread)
        prompt = msgspec.structs.replace(
            prompt, messages_json=turns.messages_json, has_calls=turns.has_calls
        )
        return replace(request, prompt=prompt, thread=thread)

    def keeping(
        self, sink: AnswerSink, identity: Identity, request: GenerationRequest
    ) -> AnswerSink:
        """The sink of an answer that is kept as it ends. In the background, its sink does that."""
        thread = request.thread
        if self._store is None or thread is None or not thread.tenant or thread.is_background:
            return sink
        if not thread.is_stored and not thread.conversation_id:
            return sink
        return KeptAnswer(sink, self._store, identity, request)

    async def encode_fitting(
        self, valid: ValidRequest, encode: Encode, num_room: int
    ) -> tokenizer_pb2.EncodeResponse:
        """The prompt's tokens, without its oldest turns if all are too many. Raises InvalidRequest
        when the last turn alone is too long."""
        return await encode_fitting(valid, encode, num_room)

    async def _turns(self, request: GenerationRequest, thread: Thread) -> ChatMessages:
        """The conversation of all items. Many items take long, and do so beside the event loop."""
        items = spliced(thread.earlier_json, _listed(thread.input_json))
        if len(items) <= LARGE_BODY_BYTES:
            return prompt_of(msgspec.json.decode(items), thread.instructions, None)
        body = {
            "model": request.model,
            "instructions": thread.instructions,
            "input": msgspec.Raw(items),
        }
        parsed = await self._bodies.parse(thread.tenant, "responses", msgspec.json.encode(body))
        assert isinstance(parsed.prompt, ChatMessages)
        return parsed.prompt


class KeptAnswer:
    """The sink of an answer that is stored, added to its conversation, or both, as it ends."""

    def __init__(
        self, sink: AnswerSink, store: Store, identity: Identity, request: GenerationRequest
    ) -> None:
        self._sink = sink
        self._store = store
        self._identity = identity
        self._request = request
        self._answer = ResponsesAnswer(identity, request)

    async def started(self, head: Head) -> None:
        await self._sink.started(head)

    async def deltas(self, batch: list[Delta]) -> None:
        self._answer.collect(batch)
        await self._sink.deltas(batch)

    def offer(self, batch: list[Delta], now_s: float) -> bool:
        if not self._sink.offer(batch, now_s):
            return False
        self._answer.collect(batch)
        return True

    async def finished(self, usage: Usage, head: Head) -> None:
        response = b"".join(self._answer.whole(usage))
        try:
            await self._keep(response)
        except BatonError as error:
            # RedisCommands has counted it.
            _log.warning("not_kept", request_id=self._identity.request_id, reason=error.reason)
        await self._sink.finished(usage, head)

    async def _keep(self, response: bytes) -> None:
        thread, identity = self._request.thread, self._identity
        assert thread is not None
        if len(thread.input_json) + len(thread.earlier_json) > self._store.max_object_bytes:
            _log.warning("not_kept", request_id=identity.request_id, reason=TOO_LARGE)
            return
        await add_to_conversation(self._store, thread, identity, response)
        if thread.is_stored:
            fields: Fields = {
                "status": status_of(response),
                "response": response,
                "input": input_of(thread, identity),
            }
            refused = await self._store.write(thread.tenant, response_id(identity), fields)
            if refused:
                _log.warning("not_kept", request_id=identity.request_id, reason=refused)


def input_of(thread: Thread, identity: Identity) -> bytes:
    """All items before the output of a response, as JSON."""
    own = named_items(thread.input_json, identity.request_id)
    return spliced(thread.earlier_json, msgspec.json.encode(own))


async def add_to_conversation(
    store: Store, thread: Thread, identity: Identity, response: bytes
) -> None:
    """Add the input and the output of a response to its conversation, if it has one. Raises
    Unavailable."""
    if not thread.conversation_id:
        return
    items = named_items(thread.input_json, identity.request_id)
    items += output_items(msgspec.json.decode(response))
    encoded = [msgspec.json.encode(item) for item in items]
    refused = await store.append_items(thread.tenant, thread.conversation_id, encoded)
    if refused:
        _log.warning("not_in_conversation", request_id=identity.request_id, reason=refused)


async def _earlier(store: Store, thread: Thread) -> bytes:
    """The items before the input, as JSON. Raises InvalidRequest when they are not there."""
    if thread.conversation_id:
        found = await store.read(thread.tenant, thread.conversation_id, "conversation")
        if found == [None]:
            raise not_found("conversation", thread.conversation_id)
        items = await store.items(thread.tenant, thread.conversation_id)
        return b"[%b]" % b",".join(items)
    names = ("status", "input", "response")
    status, before, response = await store.read(thread.tenant, thread.previous_response_id, *names)
    if before is None or response is None:
        raise InvalidRequest(
            f"previous_response_id: {quoted(thread.previous_response_id)} is not stored here",
            reason="previous_response_not_found",
            param="previous_response_id",
        )
    if status in (b"queued", b"in_progress"):
        message = "previous_response_id: this response has not ended"
        raise InvalidRequest(message, param="previous_response_id")
    output = output_items(msgspec.json.decode(response))
    return spliced(before, msgspec.json.encode(output))


def spliced(first: bytes, second: bytes) -> bytes:
    """Two JSON lists as one."""
    if b"[]" in (first, second):
        return second if first == b"[]" else first
    return first[:-1] + b"," + second[1:]


def _listed(input_json: bytes) -> bytes:
    """An input as a list of items."""
    if input_json.startswith(b"["):
        return input_json
    return b'[{"role":"user","content":%b}]' % input_json


def _without_store(request: GenerationRequest, thread: Thread) -> GenerationRequest:
    """The request where nothing is kept. What cannot be done then is refused."""
    wanted = {
        "previous_response_id": thread.previous_response_id,
        "conversation": thread.conversation_id,
        "background": thread.is_background,
        "input": thread.has_references,
    }
    for name, value in wanted.items():
        if value:
            raise InvalidRequest(
                f"{name}: this server keeps no responses; send the whole conversation as input",
                reason="unsupported_parameter",
                param=name,
            )
    return replace(request, repeated={**request.repeated, "store": False})
