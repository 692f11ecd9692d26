"""The syntax in which a model writes tool calls, found in its chat templates.

The names are those of `services/gateway/tools/call_syntax.py`. A setting may name another one.
"""

import re
from collections.abc import Iterable

# The model is told by a message how to write calls: its template knows no tools.
GENERIC = "generic"
# The template shows tools in a syntax that is not in the table.
UNKNOWN = ""
_NAMES_TOOLS = re.compile(r"\btools\b")


def tool_syntax(templates: Iterable[str]) -> str:
    """The name of the syntax that these templates show."""
    text = "\n".join(templates)
    if not _NAMES_TOOLS.search(text):
        return GENERIC
    if "<｜tool▁call▁begin｜>" in text:
        return "deepseek" if "```json" in text else "deepseek_v31"
    if "[TOOL_CALLS]" in text:
        return "mistral_named" if "[ARGS]" in text else "mistral"
    if "<tool_call>" in text and "<function=" not in text:
        return "hermes"
    if "<|python_tag|>" in text or ("<|start_header_id|>" in text and '"parameters"' in text):
        return "llama3"
    return UNKNOWN
