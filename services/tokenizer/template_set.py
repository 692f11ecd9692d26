"""All templates of one model: loads them, probes them, picks the one for a request.

Runs in a child (`template_child.py`). The caller limits the time: `limit_cpu(seconds)` is a context
that raises CpuLimitReached.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

import msgspec

from services.tokenizer.chat_template import ChatTemplate, RenderFailed, UnusableTemplate
from services.tokenizer.control_tokens import ControlMarks, control_tokens
from services.tokenizer.render_messages import Fault, Rendered, RenderRequest, TemplateSetup

MAX_SOURCE_BYTES = 1024 * 1024
DEFAULT = "default"
TOOL_USE = "tool_use"

_PROBES = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ],
)
_PROBE_TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
]
# A template may refuse a probe or fail to render it, and still serve other conversations.
_TOLERATED = (Fault.REFUSED, Fault.ERROR, Fault.AMBIGUOUS)
_FAULT_TEXTS = {
    Fault.CPU_LIMIT: "The chat template needs too much time for this conversation",
    Fault.MEMORY_LIMIT: "The chat template needs too much memory for this conversation",
}


class CpuLimitReached(BaseException):
    """Raised into a rendering that used up its CPU time; no template can catch it."""


LimitCpu = Callable[[float], AbstractContextManager[None]]


class TemplateSet:
    """The loaded templates of a model. Raises UnusableTemplate."""

    def __init__(
        self, setup: TemplateSetup, now: Callable[[], datetime], limit_cpu: LimitCpu
    ) -> None:
        self._limits = setup.limits
        self._limit_cpu = limit_cpu
        self._templates: dict[str, ChatTemplate] = {}
        for name, source in setup.sources.items():
            if len(source.encode()) > MAX_SOURCE_BYTES:
                raise UnusableTemplate(f"template {name!r} is longer than {MAX_SOURCE_BYTES} bytes")
            self._templates[name] = ChatTemplate(
                source, setup.special_tokens, setup.limits.max_output_bytes, now
            )
        literal_text = "\0".join(t.literal_text for t in self._templates.values())
        self.control_tokens = control_tokens(
            setup.added_tokens, setup.chat_control_tokens, literal_text
        )
        marks = ControlMarks(self.control_tokens)
        for template in self._templates.values():
            template.mark(marks)
        self._probe()

    def render(self, request: RenderRequest) -> Rendered:
        """Render a request: the prompt, or the fault that prevented it. Raises nothing."""
        name = TOOL_USE if request.tools_json and TOOL_USE in self._templates else DEFAULT
        if name not in self._templates:
            message = f"This model has no chat template named {name!r}"
            return Rendered(fault=Fault.ERROR, message=message, param="messages")
        return self._render(self._templates[name], request, self._limits.cpu_s)

    def _render(self, template: ChatTemplate, request: RenderRequest, cpu_s: float) -> Rendered:
        try:
            with self._limit_cpu(cpu_s):
                return template.render(request)
        except RenderFailed as failure:
            return failure.answer
        except CpuLimitReached:
            fault = Fault.CPU_LIMIT
        except MemoryError:
            fault = Fault.MEMORY_LIMIT
        return Rendered(fault=fault, message=_FAULT_TEXTS[fault], param="messages")

    def _probe(self) -> None:
        """Render short conversations with little CPU time, to find hostile templates at load."""
        for name, template in self._templates.items():
            for messages in _PROBES:
                for tools in ([], _PROBE_TOOLS):
                    request = RenderRequest(
                        msgspec.json.encode(messages), msgspec.json.encode(tools) if tools else b""
                    )
                    answer = self._render(template, request, self._limits.probe_cpu_s)
                    if answer.fault is not None and answer.fault not in _TOLERATED:
                        raise UnusableTemplate(f"template {name!r}: {answer.fault} at the probe")
