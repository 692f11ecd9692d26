"""The messages between the service and its template children, as msgpack.

Shared by both sides and by the renderer of tests; imports neither jinja2 nor asyncio.
"""

from enum import StrEnum

import msgspec


class Fault(StrEnum):
    """The reason for which a rendering failed.

    REFUSED: the template raised an exception of its own. UNSAFE: it tried something forbidden by
    the sandbox, or endless. AMBIGUOUS: its own control tokens cannot be told from the request's.
    """

    REFUSED = "refused"
    INVALID_VALUE = "invalid_value"
    ERROR = "error"
    UNSAFE = "unsafe"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    AMBIGUOUS = "ambiguous"


class TemplateLimits(msgspec.Struct, frozen=True):
    """Limits of one rendering. `probe_cpu_s` holds only for the probes at load."""

    max_output_bytes: int = 4 * 1024 * 1024
    cpu_s: float = 1.0
    probe_cpu_s: float = 0.1


class TemplateSetup(msgspec.Struct, frozen=True):
    """A model's templates by name ("default", "tool_use", ...), and the values they refer to."""

    sources: dict[str, str]
    # Template variables such as bos_token.
    special_tokens: dict[str, str]
    # Added tokens of the tokenizer, in the order of their ids: (spelling, special).
    added_tokens: list[tuple[str, bool]]
    # The model's own list of non-special control tokens; None = those that its templates spell.
    chat_control_tokens: list[str] | None = None
    limits: TemplateLimits = TemplateLimits()


class TemplateReady(msgspec.Struct, frozen=True):
    """The child's answer to its setup.

    `refusal` is the reason for which the templates must not be used; None = they are loaded.
    """

    refusal: str | None = None
    control_tokens: list[str] = []


class RenderRequest(msgspec.Struct, frozen=True):
    """One conversation, as JSON (see ChatPrompt in protos/baton/wire/v1/tokenizer.proto)."""

    messages_json: bytes
    tools_json: bytes = b""
    template_kwargs_json: bytes = b""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class Rendered(msgspec.Struct, frozen=True):
    """The prompt's text, or the fault that prevented it.

    `control_spans` are the [start, end) character positions, flat and in order, of the control
    tokens that the template wrote; everything else is text. `has_spelled_controls`: `text` also
    spells control tokens that came from the request.
    """

    text: str = ""
    has_spelled_controls: bool = False
    control_spans: list[int] = []
    fault: Fault | None = None
    message: str = ""
    param: str = ""
