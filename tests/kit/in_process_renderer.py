"""A renderer of conversations in the caller's own process, for templates that are not hostile."""

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime

from services.tokenizer.chat_template import UnusableTemplate
from services.tokenizer.render_messages import Rendered, RenderRequest, TemplateSetup
from services.tokenizer.template import Renderer, TemplateRefused
from services.tokenizer.template_set import TemplateSet


class InProcessRenderer:
    """Renders without limits of time and memory. Raises TemplateRefused."""

    def __init__(self, setup: TemplateSetup, now: Callable[[], datetime]) -> None:
        try:
            self._templates = TemplateSet(setup, now, lambda _seconds: contextlib.nullcontext())
        except UnusableTemplate as error:
            raise TemplateRefused(str(error)) from error

    @property
    def control_tokens(self) -> list[str]:
        return self._templates.control_tokens

    async def render(self, request: RenderRequest) -> Rendered:
        return self._templates.render(request)

    async def close(self) -> None:
        """Do nothing: there is no child to end."""


def in_process_renderers(
    now: Callable[[], datetime],
) -> Callable[[TemplateSetup], Awaitable[Renderer]]:
    """A function that makes an InProcessRenderer for each loaded model."""

    async def make(setup: TemplateSetup) -> Renderer:
        return InProcessRenderer(setup, now)

    return make
