"""Quota, tokenizer and router in memory, as the gateway's ports.

Tokens are bytes: id 0..255 is that byte, EOS ends an answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec

from baton.runtime.shared_stream import StreamLost
from baton.testing.memory_stream import MemoryStream, memory_stream_pair
from baton.wire.failures import AuthenticationFailed, BatonError, DeadlineExceeded, Unavailable
from baton.wire.key_registry import key_digest
from baton.wire.pooling import Pooling
from baton.wire.v1 import quota_pb2, router_pb2, tokenizer_pb2
from services.gateway.clients.protocols import CallContext
from services.gateway.tenants.quota_outage import NO_KEY
from tests.unit.gateway.fake_worker import EOS

SECRET = b"s" * 32
KEY = "bt-" + "k" * 43
MODEL_FP = "f" * 32
BLOCK_SIZE = 16


def tokenizer_json() -> bytes:
    """A byte-level tokenizer with no merges whose ids are the bytes themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    vocab = {letters[byte]: byte for byte in range(256)} | {"<eos>": EOS}
    eos = {"id": EOS, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False}
    return msgspec.json.encode(
        {
            "version": "1.0",
            "added_tokens": [{**eos, "normalized": False, "special": True}],
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )


def artifact(
    generation_config: dict[str, Any] | None = None,
    tool_syntax: str = "generic",
    reasoning_syntax: str = "none",
    pooling: Pooling | None = None,
    has_pair_template: bool = False,
) -> bytes:
    syntaxes = {"tool_syntax": tool_syntax, "reasoning_syntax": reasoning_syntax}
    description = msgspec.json.encode(
        {**syntaxes, "pooling": pooling, "has_pair_template": has_pair_template}
    )
    files = {"tokenizer.json": tokenizer_json(), "detokenizer.json": description}
    if generation_config is not None:
        files["generation_config.json"] = msgspec.json.encode(generation_config)
    return msgspec.msgpack.encode(files)


def token_bytes(text: str | bytes) -> bytes:
    """Token ids of a text, u32 little-endian."""
    data = text.encode() if isinstance(text, str) else text
    return b"".join(byte.to_bytes(4, "little") for byte in data)


def prefix_hashes(ids: bytes) -> Iterator[bytes]:
    """The hash of each full block and of all tokens before it."""
    num_bytes = 4 * BLOCK_SIZE
    prefix = sha256()
    for start in range(0, len(ids) - num_bytes + 1, num_bytes):
        prefix.update(ids[start : start + num_bytes])
        yield prefix.digest()[:16]


class FakeQuota:
    """Answers as a test has set it, and keeps what it was asked.

    It has an attribute for each answer that a test sets and for each kind of message that it reads.
    """

    def __init__(self) -> None:
        self.principal = quota_pb2.AuthenticateResponse(
            tenant="acme", key_id="key-1", fresh_for_s=5.0
        )
        # Of all that it knows.
        self.digests = {key_digest(SECRET, KEY)}
        self.limits: Any = None
        self.failure: BatonError | None = None
        self.settle_failure: BatonError | None = None
        self.settle_delay_s = 0.0
        self.reserve_failure: BatonError | None = None
        self.reserve_delay_s = 0.0
        # Estimates of prompts have no room.
        self.holds_fewest = False
        self.exact_failure: BatonError | None = None
        self.num_authenticated = self.num_probes = 0
        self.authenticate_delay_s = 0.0
        self.reserved: list[quota_pb2.ReserveRequest] = []
        self.settled: list[quota_pb2.UsageRecord] = []
        self.contexts: dict[str, CallContext] = {}
        self.renewals: list[quota_pb2.LeaseRenewal] = []
        # What to answer to a renewal: (granted, state).
        self.on_renewal: Callable[[quota_pb2.LeaseRenewal], tuple[int, int]] = lambda renewal: (
            renewal.wanted_output_tokens,
            quota_pb2.LeaseState.STATE_HELD,
        )
        self.renewals_open = True
        self.hangs_renewals = False
        # With STATE_SHORT.
        self.retry_after_ms = 0
        # With STATE_REFUSED.
        self.spent_limit = ""
        self.tasks: asyncio.TaskGroup | None = None

    async def authenticate(
        self, digest: bytes, context: CallContext
    ) -> quota_pb2.AuthenticateResponse:
        self.num_authenticated += digest != NO_KEY
        await asyncio.sleep(self.authenticate_delay_s)
        self._raise(self.failure)
        if digest not in self.digests:
            raise AuthenticationFailed("unknown key")
        return self.principal

    async def reserve(
        self, request: quota_pb2.ReserveRequest, context: CallContext
    ) -> quota_pb2.ReserveResponse:
        self._raise(self.failure)
        self._raise(self.reserve_failure)
        if request.replaces_estimate:
            self._raise(self.exact_failure)
        self.reserved.append(request)
        self.contexts["reserve"] = context
        await asyncio.sleep(self.reserve_delay_s)
        return quota_pb2.ReserveResponse(
            granted_output_tokens=request.num_output_tokens,
            num_prompt_tokens=(self.holds_fewest and request.min_prompt_tokens)
            or request.num_prompt_tokens,
            expires_in_ms=30_000,
            limits=self.limits,
        )

    async def settle(self, record: quota_pb2.UsageRecord, context: CallContext) -> None:
        await asyncio.sleep(self.settle_delay_s)
        self._raise(self.settle_failure)
        self.settled.append(record)

    async def open_renewals(self) -> MemoryStream:
        if not self.renewals_open:
            raise Unavailable("renewals are closed")
        near, far = memory_stream_pair()
        assert self.tasks is not None
        self.tasks.create_task(self._renew(far))
        return near

    async def probe(self, deadline_s: float) -> None:
        self.num_probes += 1
        self._raise(self.failure)

    async def _renew(self, stream: MemoryStream) -> None:
        try:
            while (request := await stream.read()) is not None:
                if self.hangs_renewals:
                    continue
                response = quota_pb2.RenewResponse()
                for lease in request.leases:
                    self.renewals.append(lease)
                    granted, state = self.on_renewal(lease)
                    response.leases.add(
                        request_id=lease.request_id,
                        granted_output_tokens=granted,
                        state=state,
                        retry_after_ms=self.retry_after_ms,
                        spent_limit=self.spent_limit,
                    )
                await stream.write(response)
        except StreamLost:
            return

    @staticmethod
    def _raise(failure: BatonError | None) -> None:
        if failure is not None:
            raise failure


class FakeTokenizer:
    def __init__(self) -> None:
        self.data = artifact()
        self.failure: BatonError | None = None
        self.delay_s = 0.0
        # The part of a prompt's bytes that is left.
        self.tokens_per_byte = 1.0
        # The end of every prompt of a chat, as a template would write it.
        self.generation_prompt = ""
        self.encoded: list[tokenizer_pb2.EncodeRequest] = []
        self.contexts: list[CallContext] = []
        self.num_artifacts = 0

    async def encode(
        self, request: tokenizer_pb2.EncodeRequest, context: CallContext
    ) -> tokenizer_pb2.EncodeResponse:
        if self.failure is not None:
            raise self.failure
        self.encoded.append(request)
        self.contexts.append(context)
        await asyncio.sleep(self.delay_s)
        text = request.text.encode() if request.text else request.chat.messages_json
        text = text[: round(len(text) * self.tokens_per_byte)]
        text += b"" if request.text else self.generation_prompt.encode()
        ids = request.token_ids or token_bytes(text)
        return tokenizer_pb2.EncodeResponse(
            token_ids=ids, block_hashes=b"".join(prefix_hashes(ids))
        )

    async def artifact(self, model_fp: str) -> bytes:
        self.num_artifacts += 1
        await asyncio.sleep(0.01)
        return self.data

    async def probe(self, deadline_s: float) -> None:
        if self.failure is not None:
            raise self.failure


def model_state(
    name: str = "demo", model_fp: str = MODEL_FP, ready: bool = True, max_model_len: int = 2048
) -> Any:
    return router_pb2.ModelState(
        model_fp=model_fp,
        name=name,
        revision="main",
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
        vocab_size=257,
        eos_token_ids=[EOS],
        workers=[
            router_pb2.WorkerState(
                worker_id="w1", endpoint="w1:1", role=router_pb2.WORKER_ROLE_DECODE, ready=ready
            )
        ],
    )


class FakeRouter:
    def __init__(self) -> None:
        self.models = [model_state()]
        self.workers = ["w1", "w2", "w3"]
        self.picked: list[router_pb2.PickRequest] = []
        self.contexts: list[CallContext] = []
        self.cancelled: list[router_pb2.CancelRequest] = []
        self.queue_s = 0.0
        self.ignores_exclusion = False
        self.failure: Exception | None = None
        self.reasons = router_pb2.PickReasons(remark="only one")

    async def pick(
        self, request: router_pb2.PickRequest, context: CallContext
    ) -> router_pb2.PickResponse:
        self.picked.append(request)
        self.contexts.append(context)
        await asyncio.sleep(self.queue_s)
        if self.failure is not None:
            raise self.failure
        if context.deadline_s <= 0:
            raise DeadlineExceeded("the deadline passed before the call")
        excluded = () if self.ignores_exclusion else request.exclude_worker_ids
        left = [w for w in self.workers if w not in excluded]
        if not left:
            raise Unavailable("no worker is left", reason="no_worker", retry_after_s=1)
        endpoint = router_pb2.WorkerEndpoint(worker_id=left[0], endpoint=f"{left[0]}:1")
        prefill = router_pb2.WorkerEndpoint(worker_id="p1", endpoint="p1:1")
        return router_pb2.PickResponse(
            decode=endpoint,
            prefill=prefill,
            queue_us=round(self.queue_s * 1e6),
            reasons=self.reasons,
        )

    async def cancel(self, request: router_pb2.CancelRequest, context: CallContext) -> None:
        self.cancelled.append(request)

    async def watch_admission(self) -> AsyncIterator[router_pb2.WatchAdmissionResponse]:
        while True:
            yield router_pb2.WatchAdmissionResponse(models=self.models, cancelled=self.cancelled)
            await asyncio.sleep(0.1)
