"""Renders conversations in killable children: a template is a program of unknown origin."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec

from baton.system.child import (
    ChildDied,
    ChildFailed,
    ChildLimits,
    ChildProcess,
    ChildRestartsExhausted,
    ChildTimedOut,
)
from baton.system.clock import Clock
from baton.wire.failures import InternalFailure, InvalidRequest, Overloaded, Unavailable
from services.tokenizer.render_messages import (
    Rendered,
    RenderRequest,
    TemplateReady,
    TemplateSetup,
)

CHILD_MODULE = "services.tokenizer.template_child"

_encode = msgspec.msgpack.Encoder().encode
_decode_ready = msgspec.msgpack.Decoder(TemplateReady).decode
_decode_rendered = msgspec.msgpack.Decoder(Rendered).decode


class TemplateRefused(Exception):
    """A model's chat template must not be used; the message is the reason."""


class Renderer(Protocol):
    """Renders the conversations of one model."""

    @property
    def control_tokens(self) -> list[str]:
        """Spellings that only the template may turn into ids."""

    async def render(self, request: RenderRequest) -> Rendered:
        """Render a conversation: a prompt, or the template's fault.

        Raises Overloaded, Unavailable, and InvalidRequest when the template takes too long.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True)
class RenderLimits:
    """Limits of the children of one model.

    `deadline_s` is wall time and kills a child; the CPU time in TemplateLimits ends first.
    """

    num_children: int = 2
    max_waiting: int = 64
    deadline_s: float = 5.0
    start_deadline_s: float = 30.0
    memory_bytes: int = 512 * 1024 * 1024


class ChildRenderer:
    """A renderer with `num_children` children, each for one conversation at a time."""

    def __init__(
        self, setup: TemplateSetup, clock: Clock, limits: RenderLimits | None = None
    ) -> None:
        self._limits = limits or RenderLimits()
        self._control_tokens: list[str] = []
        child_limits = ChildLimits(
            memory_bytes=self._limits.memory_bytes, start_deadline_s=self._limits.start_deadline_s
        )
        self._children = [
            ChildProcess(CHILD_MODULE, clock, setup=_encode(setup), limits=child_limits)
            for _ in range(self._limits.num_children)
        ]
        # The child used last comes first: its pages are warm.
        self._idle: asyncio.LifoQueue[ChildProcess] = asyncio.LifoQueue()
        self._num_waiting = 0

    @property
    def control_tokens(self) -> list[str]:
        return self._control_tokens

    async def start(self) -> None:
        """Start the children and load the templates. Raises TemplateRefused."""
        for child in self._children:
            ready = await self._load(child)
            if ready.refusal is not None:
                await self.close()
                raise TemplateRefused(ready.refusal)
            self._control_tokens = ready.control_tokens
            self._idle.put_nowait(child)

    async def render(self, request: RenderRequest) -> Rendered:
        if self._num_waiting >= self._limits.max_waiting:
            raise Overloaded("Too many conversations wait for their chat template", retry_after_s=1)
        self._num_waiting += 1
        try:
            child = await self._idle.get()
        finally:
            self._num_waiting -= 1
        try:
            answer = await child.call(_encode(request), deadline_s=self._limits.deadline_s)
        except ChildFailed as error:
            raise _failure_of(error) from error
        finally:
            self._idle.put_nowait(child)
        return _decode_rendered(answer)

    async def close(self) -> None:
        for child in self._children:
            await child.close()

    async def _load(self, child: ChildProcess) -> TemplateReady:
        try:
            return _decode_ready(await child.start())
        except ChildTimedOut:
            seconds = self._limits.start_deadline_s
            return TemplateReady(refusal=f"it does not load within {seconds:g} s")
        except ChildDied as error:
            return TemplateReady(refusal=f"its child process died while loading it ({error})")


def _failure_of(error: ChildFailed) -> Exception:
    if isinstance(error, ChildTimedOut):
        message = "The chat template needs too much time for this conversation"
        return InvalidRequest(message, reason="template_error", param="messages")
    if isinstance(error, ChildDied):
        message = "The chat template failed on this conversation"
        return InvalidRequest(message, reason="template_error", param="messages")
    if isinstance(error, ChildRestartsExhausted):
        return Unavailable("Chat templates cannot be rendered at the moment", retry_after_s=5)
    return InternalFailure("The chat template's child process failed")
