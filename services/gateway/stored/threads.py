"""The threads of responses: what stands before an input is fetched, and what came of it is kept.

A stored response holds all items before its output, so that it outlives those it follows. A
response is kept before its client sees its end: the next request may name it. An answer whose
thread cannot be kept is given all the same.
"""

from dataclasses import replace
from typing import Any

import msgspec

from baton.runtime import logs
from baton.wire.failures import BatonError, InvalidRequest
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
from services.gateway.stored.items import named_items, output_items
from services.gateway.stored.reading import not_found, status_of
from services.gateway.stored.store import Fields, Store
from services.gateway.stored.truncation import encode_fitting
from services.gateway.tenants.principal import Principal

_log = logs.get("store")


class StoredThreads:
    """The threads of one gateway's requests. `store`: None when this gateway keeps nothing."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def resolve(
        self, request: GenerationRequest, thread: Thread, principal: Principal
    ) -> GenerationRequest:
        """The request with the items that stand before its input. Raises InvalidRequest when they
        are not there, Unavailable."""
        store = self._store
        if store is None or not store.keeps(principal.tenant):
            return _without_store(request, thread)
        thread = msgspec.structs.replace(thread, tenant=principal.tenant)
        if not thread.previous_response_id and not thread.conversation_id:
            return replace(request, thread=thread)
        earlier = await self._earlier(store, thread)
        given = msgspec.json.decode(thread.input_json)
        own = [{"role": "user", "content": given}] if isinstance(given, str) else given
        prompt = request.prompt
        assert isinstance(prompt, ChatMessages)
        return replace(
            request,
            prompt=prompt_of([*earlier, *own], thread.instructions, prompt.tools),
            thread=msgspec.structs.replace(thread, earlier_json=msgspec.json.encode(earlier)),
        )

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

    async def _earlier(self, store: Store, thread: Thread) -> list[dict[str, Any]]:
        if thread.conversation_id:
            return await _conversation_items(store, thread)
        names = ("status", "input", "response")
        status, items, response = await store.read(
            thread.tenant, thread.previous_response_id, *names
        )
        if items is None or response is None:
            raise InvalidRequest(
                f"previous_response_id: {thread.previous_response_id} is not stored here",
                reason="previous_response_not_found",
                param="previous_response_id",
            )
        if status in (b"queued", b"in_progress"):
            message = "previous_response_id: this response has not ended"
            raise InvalidRequest(message, param="previous_response_id")
        return [*msgspec.json.decode(items), *output_items(msgspec.json.decode(response))]


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
    own = msgspec.json.encode(named_items(thread.input_json, identity.request_id))
    if thread.earlier_json == b"[]":
        return own
    return thread.earlier_json[:-1] + b"," + own[1:]


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


async def _conversation_items(store: Store, thread: Thread) -> list[dict[str, Any]]:
    (found,) = await store.read(thread.tenant, thread.conversation_id, "conversation")
    if found is None:
        raise not_found("conversation", thread.conversation_id)
    items = await store.items(thread.tenant, thread.conversation_id)
    return [msgspec.json.decode(item) for item in items]


def _without_store(request: GenerationRequest, thread: Thread) -> GenerationRequest:
    """The request where nothing is kept. What cannot be done then is refused."""
    wanted = {
        "previous_response_id": thread.previous_response_id,
        "conversation": thread.conversation_id,
        "background": thread.is_background,
    }
    for name, value in wanted.items():
        if value:
            raise InvalidRequest(
                f"{name}: this server keeps no responses; send the whole conversation as input",
                reason="unsupported_parameter",
                param=name,
            )
    return replace(request, repeated={**request.repeated, "store": False})
