"""One batch while this gateway works on it.

    validating -> in_progress -> finalizing -> completed | expired | failed
    validating -> failed | expired        validating, in_progress -> cancelling -> cancelled

All that is known of a batch is in the store: each round reads its status and takes the step of that
status, so that it makes no difference which gateway began it. Beside a step the lease is renewed,
and the step is broken off when something else has come up. Steps can be taken twice: an answer is
written once, and a status never goes back.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

import msgspec

from baton.runtime import logs
from baton.system.clock import Clock
from baton.wire.failures import AuthenticationFailed, BatonError, InvalidRequest, Unavailable
from services.gateway.batches.lines import (
    Line,
    LineError,
    LineReader,
    check_lines,
    expired_line,
    is_done,
    parse_line,
)
from services.gateway.batches.objects import file_json, output_ids
from services.gateway.batches.request import LineRequests, owner_of
from services.gateway.batches.store import BatchKey, BatchStore, LineResult
from services.gateway.clients.protocols import CallContext
from services.gateway.request.pipeline import AUTHENTICATE_TIMEOUT_S, Pipeline
from services.gateway.routing.models import ModelDirectory
from services.gateway.tenants.auth import Authenticator

T = TypeVar("T")
# A gateway that says nothing for LEASE_S has died.
LEASE_S = 15.0
BEAT_S = 2.0
_SHORTEST_BEAT_S = 0.1
# Between two tries of a line, or of a store that does not answer.
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
# Between two looks whether a tenant has room for more answers.
LOOK_FOR_ROOM_S = 10.0
OPEN = ("validating", "in_progress")
_log = logs.get("batches")


@dataclass(frozen=True, slots=True)
class RunDeps:
    """The parts of a gateway that its batches use."""

    store: BatchStore
    pipeline: Pipeline
    authenticator: Authenticator
    directory: ModelDirectory
    clock: Clock
    rng: Random
    gateway_id: str


class BatchRun:
    """One batch. `leaving` is set when this gateway begins no more lines."""

    def __init__(self, key: BatchKey, deps: RunDeps, leaving: asyncio.Event) -> None:
        self._key = key
        self._deps = deps
        self._store = deps.store
        self._leaving = leaving
        self._output_id, self._errors_id = output_ids(key)

    async def run(self) -> None:
        """Work on the batch until it has ended, or another gateway has it. The lease must be held;
        it is given back."""
        try:
            while not self._leaving.is_set():
                try:
                    fields = await self._insist(partial(self._store.batch, self._key))
                except InvalidRequest:
                    await self._insist(partial(self._store.close_batch, self._key))
                    return
                step = self._step_of(fields)
                if step is None:
                    await self._insist(partial(self._store.close_batch, self._key))
                    _log.info("batch_ended", batch_id=self._key.batch_id, status=fields["status"])
                    return
                if not await self._watched(fields, step):
                    return
        finally:
            with contextlib.suppress(Unavailable):
                await self._store.lease(self._key, self._deps.gateway_id, 0.0)

    def _step_of(self, fields: Mapping[str, str]) -> Coroutine[Any, Any, None] | None:
        status = fields["status"]
        if status in OPEN and self._left_s(fields) <= 0:
            return self._expire(fields)
        if status == "validating":
            return self._validate(fields)
        if status == "in_progress":
            return self._answer_all(fields)
        if status == "finalizing":
            return self._finish(fields, fields["outcome"])
        if status == "cancelling":
            return self._finish(fields, "cancelled")
        return None

    async def _watched(self, fields: Mapping[str, str], step: Coroutine[Any, Any, None]) -> bool:
        """Take a step, unless it is overtaken. False when another gateway has the batch."""
        work = asyncio.create_task(step)
        has_time = self._left_s(fields) > 0
        is_mine = True
        try:
            while not work.done() and is_mine:
                left_s = self._left_s(fields)
                wait_s = min(BEAT_S, left_s) if has_time else BEAT_S
                await asyncio.wait({work}, timeout=max(wait_s, _SHORTEST_BEAT_S))
                with contextlib.suppress(Unavailable):
                    is_mine = not await self._store.lease(self._key, self._deps.gateway_id, LEASE_S)
                    if await self._is_overtaken(fields, has_time=has_time):
                        break
            if work.done():
                await work
            return is_mine
        finally:
            work.cancel()
            await asyncio.wait({work})

    async def _is_overtaken(self, fields: Mapping[str, str], *, has_time: bool) -> bool:
        """True when the batch was cancelled or is gone, or its time is up."""
        try:
            status = (await self._store.batch(self._key))["status"]
        except InvalidRequest:
            return True
        is_late = status in OPEN and has_time and self._left_s(fields) <= 0
        return is_late or (status == "cancelling" != fields["status"])

    async def _validate(self, fields: Mapping[str, str]) -> None:
        try:
            allowed = await self._allowed_models(fields)
        except AuthenticationFailed as error:
            errors = [LineError(error.reason, error.message).shown]
        else:
            check_model = partial(self._deps.directory.resolve, allowed=allowed)
            checked = await check_lines(
                self._reader(fields), fields["endpoint"], self._store.limits.max_lines, check_model
            )
            errors = checked.errors
        if errors:
            kept = msgspec.json.encode(errors).decode()
            await self._step(("validating",), "failed", {"errors": kept})
            return
        counts = {"total": str(checked.num_lines), "model": checked.model}
        await self._step(("validating",), "in_progress", counts)

    async def _allowed_models(self, fields: Mapping[str, str]) -> tuple[str, ...]:
        owner = owner_of(fields["owner"])
        context = CallContext(self._key.batch_id, AUTHENTICATE_TIMEOUT_S)
        ask = partial(self._deps.authenticator.authenticate, owner, context)
        return (await self._insist(ask)).allowed_models

    async def _answer_all(self, fields: Mapping[str, str]) -> None:
        """Answer the lines that have no answer, some at once."""
        deps, limits = self._deps, self._store.limits
        requests = LineRequests(deps.pipeline, deps.rng, fields, limits.max_answer_bytes)
        slots = asyncio.Semaphore(limits.num_lines_at_once)
        outcome: dict[str, str] = {"outcome": "completed"}
        async with asyncio.TaskGroup() as tasks:
            try:
                async with contextlib.aclosing(self._open_lines(fields)) as lines:
                    async for line in lines:
                        await slots.acquire()
                        await self._wait_for_room()
                        if self._leaving.is_set():
                            break
                        task = tasks.create_task(self._answer(requests, line, fields))
                        task.add_done_callback(lambda _: slots.release())
            except LineError as error:
                kept = msgspec.json.encode([error.shown]).decode()
                outcome = {"outcome": "failed", "errors": kept}
        if not self._leaving.is_set():
            await self._step(("in_progress",), "finalizing", outcome)

    async def _open_lines(self, fields: Mapping[str, str]) -> AsyncGenerator[Line]:
        """The lines without an answer. Raises LineError."""
        bits = await self._insist(partial(self._store.lines_done, self._key))
        async for number, text in self._reader(fields).numbered():
            if not is_done(bits, number):
                yield parse_line(number, text, fields["endpoint"])

    async def _answer(self, requests: LineRequests, line: Line, fields: Mapping[str, str]) -> None:
        """Answer one line; what passes is waited for, until this gateway leaves."""
        retry_s = FIRST_RETRY_S
        while not self._leaving.is_set():
            try:
                result = await requests.answer(line, fields["endpoint"])
            except BatonError as error:
                wait_s = max(error.retry_after_s, retry_s * self._deps.rng.uniform(0.5, 1.0))
                retry_s = min(2 * retry_s, MAX_RETRY_S)
                await self._pause(wait_s)
            else:
                await self._keep(result)
                return

    async def _keep(self, result: LineResult) -> None:
        file_id = self._errors_id if result.is_failed else self._output_id
        await self._insist(partial(self._store.add_line, self._key, file_id, result))

    async def _wait_for_room(self) -> None:
        while not self._leaving.is_set():
            try:
                if await self._store.has_room(self._key.tenant):
                    return
            except Unavailable:
                pass
            await self._pause(LOOK_FOR_ROOM_S)

    async def _expire(self, fields: Mapping[str, str]) -> None:
        """End a batch whose time is up: the lines without an answer have failed."""
        await self._step(("validating",), "expired", {})
        if fields["status"] != "in_progress":
            return
        with contextlib.suppress(LineError):
            async for line in self._open_lines(fields):
                name = f"batch_req_{self._deps.rng.getrandbits(128):032x}"
                text = expired_line(name, line.custom_id)
                await self._keep(LineResult(line.number, text, True, {}))
        await self._step(("in_progress",), "finalizing", {"outcome": "expired"})

    async def _finish(self, fields: Mapping[str, str], outcome: str) -> None:
        """Let clients see the answers, and give the batch its last status."""
        named: dict[str, str] = {}
        for field, file_id in (
            ("output_file_id", self._output_id),
            ("error_file_id", self._errors_id),
        ):
            tenant = self._key.tenant
            size = partial(self._store.num_content_bytes, tenant, file_id)
            if num_bytes := await self._insist(size):
                now = int(self._deps.clock.unix())
                times = (now, now + int(self._store.ttl_s))
                name = f"{self._key.batch_id}_{field.removesuffix('_file_id')}.jsonl"
                shown = file_json(file_id, name, "batch_output", num_bytes, times)
                await self._insist(partial(self._store.show_file, tenant, file_id, shown))
                named[field] = file_id
        await self._step((fields["status"],), outcome, named)

    def _reader(self, fields: Mapping[str, str]) -> LineReader:
        num_bytes = int(fields["input_bytes"])
        return LineReader(self._store, self._key.tenant, fields["input_file_id"], num_bytes)

    def _left_s(self, fields: Mapping[str, str]) -> float:
        return int(fields["expires_at"]) - self._deps.clock.unix()

    async def _step(self, allowed: tuple[str, ...], status: str, fields: Mapping[str, str]) -> None:
        """Give the batch another status, unless it has one that is not `allowed`."""
        now = str(int(self._deps.clock.unix()))
        changes = {**fields, "status": status, f"{status}_at": now}
        await self._insist(partial(self._store.step, self._key, allowed, changes))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, again and again while what it needs is away."""
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(FIRST_RETRY_S)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when this gateway leaves."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
