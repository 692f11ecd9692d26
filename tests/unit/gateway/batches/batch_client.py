"""A client of one gateway that sends batches, on virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from services.gateway.batches.run import OPEN, BatchRun, RunDeps
from services.gateway.batches.store import BatchKey, BatchStore
from services.gateway.stored.store import BatchLimits, StoreLimits
from tests.unit.gateway.stored.clients import Answered, Caller, with_store

T = TypeVar("T")
CHAT = "/v1/chat/completions"
BOUNDARY = "xyz"


def line(custom_id: str = "a", url: str = CHAT, **fields: Any) -> dict[str, Any]:
    """One request of a batch."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def text_of(lines: list[Any]) -> str:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines)


def form(content: str, fields: dict[str, str] | None = None) -> bytes:
    """A form with a file, as clients write it."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (fields or {"purpose": "batch"}).items()
    ]
    head = 'Content-Disposition: form-data; name="file"; filename="in.jsonl"'
    parts.append(f"--{BOUNDARY}\r\n{head}\r\n\r\n{content}\r\n--{BOUNDARY}--\r\n")
    return "".join(parts).encode()


class BatchClient:
    """Sends files and batches through one caller."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.fleet = caller.fleet
        self.redis = caller.redis

    @property
    def store(self) -> BatchStore:
        assert self.fleet.gateway.batches is not None
        return self.fleet.gateway.batches

    async def upload(self, content: str, fields: dict[str, str] | None = None) -> Answered:
        headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        return await self.caller.call("POST", "/v1/files", form(content, fields), headers)

    async def create(self, lines: list[Any], **fields: Any) -> Any:
        """A batch of these lines."""
        file = (await self.upload(text_of(lines))).json
        answered = await self.submit(input_file_id=file["id"], **fields)
        assert answered.status == 200, answered.body
        return answered.json

    async def submit(self, **fields: Any) -> Answered:
        body = {"endpoint": CHAT, "completion_window": "24h", **fields}
        return await self.caller.call("POST", "/v1/batches", body)

    async def get(self, batch: Any) -> Any:
        return (await self.caller.get(f"/v1/batches/{batch['id']}")).json

    async def until(self, batch: Any, *statuses: str) -> Any:
        """The batch once it has one of these statuses."""
        while (shown := await self.get(batch))["status"] not in statuses:
            await asyncio.sleep(0.5)
        return shown

    async def ended(self, batch: Any) -> Any:
        return await self.until(batch, "completed", "failed", "expired", "cancelled")

    async def content(self, file_id: str | None) -> list[Any]:
        """The lines of a file, by custom id; none without a file."""
        if file_id is None:
            return []
        answered = await self.caller.get(f"/v1/files/{file_id}/content")
        found = [json.loads(text) for text in answered.body.splitlines()]
        return sorted(found, key=lambda each: each["custom_id"])

    def key(self, batch: Any) -> BatchKey:
        return BatchKey("acme", batch["id"])

    async def shorten(self, batch: Any, window_s: int) -> None:
        """Let the batch's window end so soon."""
        ends_s = int(self.fleet.clock.unix()) + window_s
        assert not await self.store.step(self.key(batch), OPEN, {"expires_at": str(ends_s)})

    def other_run(self, batch: Any, leaving: asyncio.Event | None = None) -> BatchRun:
        """The work of another gateway on a batch."""
        gateway = self.fleet.gateway
        deps = RunDeps(
            store=self.store,
            pipeline=gateway.pipeline,
            authenticator=gateway.authenticator,
            directory=gateway.directory,
            clock=gateway.clock,
            rng=gateway.rng,
            gateway_id="gw-2",
        )
        return BatchRun(self.key(batch), deps, leaving or asyncio.Event())


def with_batches(
    scenario: Callable[[BatchClient], Awaitable[T]], limits: BatchLimits | None = None
) -> T:
    """Run `scenario` against a gateway that keeps batches."""

    async def run(caller: Caller) -> T:
        return await scenario(BatchClient(caller))

    return with_store(run, StoreLimits(batches=limits or BatchLimits()))
