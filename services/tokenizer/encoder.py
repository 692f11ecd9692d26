"""Prompt -> token ids and block hashes: render, encode in a thread, hash under the tenant's key.

The top of the service's domain. Blocking work runs through the `run_in_thread` that it is given, so
that the simulation can run it inline. Knows nothing of gRPC contexts.
"""

import asyncio
import re
import sys
from array import array
from dataclasses import dataclass, field

from tokenizers import Encoding

from baton.runtime.telemetry import StageTimer
from baton.system.clock import Clock
from baton.wire import prefix_hash
from baton.wire.failures import InvalidRequest
from baton.wire.limits import MAX_BLOCK_SIZE
from baton.wire.v1 import tokenizer_pb2
from services.tokenizer.fair_queue import FairQueue, QueueLimits, Turn
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.render_messages import Fault, Rendered, RenderRequest
from services.tokenizer.served_model import RunInThread, ServedModel

_RUN = re.compile(r"\w+|\s+|[^\w\s]+")


@dataclass(frozen=True)
class EncodeLimits:
    """Limits of one prompt, and of all that are queued."""

    max_prompt_bytes: int = 1024 * 1024
    max_run_chars: int = 65_536
    queue: QueueLimits = field(default_factory=QueueLimits)


class Encoder:
    """Encodes prompts for all models of the table."""

    def __init__(
        self, models: ModelTable, limits: EncodeLimits, clock: Clock, run_in_thread: RunInThread
    ) -> None:
        self._models = models
        self._limits = limits
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._queue = FairQueue(limits.queue)

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> tokenizer_pb2.EncodeResponse:
        """Encode a request's prompt: ids, hashes and stage times.

        Raises InvalidRequest, Overloaded, Unavailable.
        """
        num_bytes = self._check(request)
        model = await self._models.find(request.model_fp)
        timer = StageTimer(self._clock)
        turn = await self._queue.enter(request.tenant, num_bytes)
        timer.mark("queue")
        try:
            return await self._encode(model, request, timer, turn)
        finally:
            turn.leave()

    async def _encode(
        self,
        model: ServedModel,
        request: tokenizer_pb2.EncodeRequest,
        timer: StageTimer,
        turn: Turn,
    ) -> tokenizer_pb2.EncodeResponse:
        kind = request.WhichOneof("prompt")
        prompt: Rendered | str | bytes = request.token_ids if kind == "token_ids" else request.text
        if kind == "chat":
            prompt = await _render(model, request.chat)
            timer.mark("template")
        encoding = _PromptEncoding(model, request, self._limits, timer)
        turn.job = asyncio.ensure_future(self._run_in_thread(encoding.run, prompt))
        response: tokenizer_pb2.EncodeResponse = await asyncio.shield(turn.job)
        timer.mark("hash")
        response.stages.extend(timer.to_wire())
        return response

    def _check(self, request: tokenizer_pb2.EncodeRequest) -> int:
        """The size of the prompt in bytes. Raises InvalidRequest."""
        if len(request.cache_key) != prefix_hash.CACHE_KEY_BYTES:
            raise InvalidRequest("cache_key must have 32 bytes", param="cache_key")
        if not 0 < request.block_size <= MAX_BLOCK_SIZE:
            raise InvalidRequest(f"block_size must be 1 to {MAX_BLOCK_SIZE}", param="block_size")
        if request.WhichOneof("prompt") is None:
            raise InvalidRequest("No prompt was given", param="prompt")
        num_bytes = _num_prompt_bytes(request)
        if num_bytes > self._limits.max_prompt_bytes:
            message = (
                f"The prompt has {num_bytes} bytes; at most {self._limits.max_prompt_bytes} are"
                " accepted"
            )
            raise InvalidRequest(message, reason="body_too_large", param=_param(request))
        return num_bytes


class _PromptEncoding:
    """The blocking half of one request. Runs in a thread; shares no state with other requests."""

    def __init__(
        self,
        model: ServedModel,
        request: tokenizer_pb2.EncodeRequest,
        limits: EncodeLimits,
        timer: StageTimer,
    ) -> None:
        self._model = model
        self._request = request
        self._limits = limits
        self._timer = timer

    def run(self, prompt: Rendered | str | bytes) -> tokenizer_pb2.EncodeResponse:
        """Ids and hashes of a rendered conversation, of plain text, or of given ids."""
        token_ids = self._given(prompt) if isinstance(prompt, bytes) else self._encoded(prompt)
        self._timer.mark("encode")
        request = self._request
        root = prefix_hash.root_hash(
            request.model_fp, request.block_size, request.cache_key, request.adapter
        )
        hashes = prefix_hash.block_hashes(root, token_ids, request.block_size, request.cache_key)
        return tokenizer_pb2.EncodeResponse(token_ids=token_ids, block_hashes=hashes)

    def _encoded(self, prompt: Rendered | str) -> bytes:
        text = prompt.text if isinstance(prompt, Rendered) else prompt
        max_run_chars = self._limits.max_run_chars
        if has_run_longer_than(text, max_run_chars):
            message = (
                f"The prompt has a stretch of more than {max_run_chars} characters without a break"
            )
            raise InvalidRequest(message, reason="run_too_long", param=_param(self._request))
        max_tokens = self._request.max_prompt_tokens
        if max_tokens and self._model.tokenizer.is_far_longer(text, max_tokens):
            raise self._too_long(f"more than {max_tokens}")
        # The encoding, which is larger than the text by far, must not outlive this line: a refusal
        # keeps the frame's variables until Python's collector finds the cycle that they are in.
        ids = array("I", self._encoding(prompt).ids)
        self._check_length(len(ids))
        self._check_ids(ids)
        return _little_endian(ids)

    def _encoding(self, prompt: Rendered | str) -> Encoding:
        has_frame = not isinstance(prompt, Rendered)
        if self._request.HasField("add_special_tokens"):
            has_frame = self._request.add_special_tokens
        if isinstance(prompt, Rendered):
            return self._model.tokenizer.encode_rendered(prompt, has_frame=has_frame)
        return self._model.tokenizer.encode_text(prompt, has_frame=has_frame)

    def _given(self, token_ids: bytes) -> bytes:
        if len(token_ids) % prefix_hash.TOKEN_BYTES:
            raise InvalidRequest("token_ids is not a whole number of tokens", param="prompt")
        self._check_length(len(token_ids) // prefix_hash.TOKEN_BYTES)
        ids = array("I", token_ids)
        if sys.byteorder == "big":
            ids.byteswap()
        self._check_ids(ids)
        return token_ids

    def _check_length(self, num_tokens: int) -> None:
        if not num_tokens:
            raise InvalidRequest("The prompt must not be empty", param=_param(self._request))
        max_tokens = self._request.max_prompt_tokens
        if max_tokens and num_tokens > max_tokens:
            raise self._too_long(str(num_tokens))

    def _too_long(self, num_tokens: str) -> InvalidRequest:
        max_tokens, param = self._request.max_prompt_tokens, _param(self._request)
        message = (
            f"This model's maximum context length is {max_tokens + 1} tokens, of which at least"
            f" 1 is for the answer. However, your {param} resulted in {num_tokens} tokens."
            f" Please reduce the length of the {param}."
        )
        return InvalidRequest(message, reason="context_length_exceeded", param=param)

    def _check_ids(self, ids: "array[int]") -> None:
        vocab_size = self._model.vocab_size
        if max(ids) < vocab_size:
            return
        index = next(index for index, token_id in enumerate(ids) if token_id >= vocab_size)
        message = f"Token id {ids[index]} at index {index} is not below {vocab_size}"
        param = f"{_param(self._request)}[{index}]"
        raise InvalidRequest(message, reason="invalid_token_id", param=param)


async def _render(model: ServedModel, chat: tokenizer_pb2.ChatPrompt) -> Rendered:
    if model.renderer is None:
        message = f"The model {model.folder.name!r} has no chat template; use /v1/completions"
        raise InvalidRequest(message, reason="no_chat_template", param="messages")
    request = RenderRequest(
        chat.messages_json,
        chat.tools_json,
        chat.template_kwargs_json,
        chat.add_generation_prompt,
        chat.continue_final_message,
    )
    return checked(await model.renderer.render(request))


def checked(answer: Rendered) -> Rendered:
    """Return an answer that is a prompt. Raises InvalidRequest for a fault."""
    if answer.fault is None:
        return answer
    reason = "invalid_value" if answer.fault is Fault.INVALID_VALUE else "template_error"
    raise InvalidRequest(answer.message, reason=reason, param=answer.param)


def _num_prompt_bytes(request: tokenizer_pb2.EncodeRequest) -> int:
    chat = request.chat
    parts = (chat.messages_json, chat.tools_json, chat.template_kwargs_json)
    # A token stands for at least one byte of text.
    num_tokens = len(request.token_ids) // prefix_hash.TOKEN_BYTES
    return sum(map(len, parts)) + len(request.text.encode()) + num_tokens


def _param(request: tokenizer_pb2.EncodeRequest) -> str:
    return "messages" if request.WhichOneof("prompt") == "chat" else "prompt"


def _little_endian(ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def has_run_longer_than(text: str, max_chars: int) -> bool:
    """Look at a few positions for a run of more than `max_chars` characters.

    A run is a stretch of word characters, of whitespace, or of neither: the longest piece that a
    pre-tokenizer keeps together, and that a tokenizer would take for one endless word. Merging one
    of a million characters takes at least a third of a second.
    """
    # A run of more than max_chars characters covers one of these positions, and goes on for at
    # least one stride from it.
    stride = max(1, max_chars // 2)
    position = 0
    while position < len(text):
        end = _run_end(text, position)
        if end - position >= stride and end - _run_start(text, position, max_chars) > max_chars:
            return True
        position = max(position + stride, end - end % stride)
    return False


def _run_end(text: str, position: int) -> int:
    match = _RUN.match(text, position)
    assert match is not None
    return match.end()


def _run_start(text: str, position: int, max_chars: int) -> int:
    """The beginning of the run around `position`, or max_chars + 1 before it if that is nearer."""
    backwards = text[max(0, position - max_chars) : position + 1][::-1]
    return position - (_run_end(backwards, 0) - 1)
