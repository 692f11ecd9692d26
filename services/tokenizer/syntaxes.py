"""The syntaxes in which a model writes tool calls and reasoning, found in its chat templates.

The names are those of `services/gateway/tools/call_syntax.py` and
`services/gateway/reasoning/reasoning_syntax.py`. Settings may name other ones.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

# The model is told by a message how to write calls: its template knows no tools.
GENERIC = "generic"
# The template shows tools in a syntax that is not in the table.
UNKNOWN = ""
# The model writes no reasoning, or it is not told from its answers.
NONE = "none"
_NAMES_TOOLS = re.compile(r"\btools\b")
_HARMONY = ("<|channel|>", "<|message|>")


@dataclass(frozen=True)
class Syntaxes:
    """The names of a model's syntaxes; None = not said."""

    tools: str | None = None
    reasoning: str | None = None

    def found(self, templates: Iterable[str], added_tokens: Collection[str]) -> "Syntaxes":
        """These names, and in place of those that are not said the ones found in these files."""
        text = "\n".join(templates)
        return Syntaxes(
            tool_syntax(text) if self.tools is None else self.tools,
            reasoning_syntax(text, added_tokens) if self.reasoning is None else self.reasoning,
        )


NOTHING_SAID = Syntaxes()


def names_pair(templates: Iterable[str]) -> bool:
    """Tell whether a template has the roles of a reranker: query and document."""
    text = "\n".join(templates)
    return all(re.search(rf"""["']{role}["']""", text) for role in ("query", "document"))


def tool_syntax(text: str) -> str:
    """The name of the syntax of calls that the text of a model's templates shows."""
    if not _NAMES_TOOLS.search(text):
        return GENERIC
    if "<｜tool▁call▁begin｜>" in text:
        return "deepseek" if "```json" in text else "deepseek_v31"
    if all(mark in text for mark in _HARMONY):
        return "harmony"
    if "<|tool_calls_section_begin|>" in text:
        return "kimi_k2"
    if "[TOOL_CALLS]" in text:
        return "mistral_named" if "[ARGS]" in text else "mistral"
    if "<tool_call>" in text and "<arg_key>" in text:
        return "glm45"
    if "<tool_call>" in text:
        return "qwen3_coder" if "<parameter=" in text else "hermes"
    if "<|python_tag|>" in text or ("<|start_header_id|>" in text and '"parameters"' in text):
        return "llama3"
    return UNKNOWN


def reasoning_syntax(text: str, added_tokens: Collection[str]) -> str:
    """The name of the syntax of reasoning that the text of a model's templates shows. Magistral is
    told to reason by a system message, so that only its vocabulary shows it."""
    if all(mark in text for mark in _HARMONY):
        return "harmony"
    if "<think>" in text or "</think>" in text:
        return "think"
    if "[/THINK]" in text or "[/THINK]" in added_tokens:
        return "mistral"
    return NONE
