"""The ways in which families of models write tool calls, one row each.

A parser (`call_parser.py`) reads calls and a grammar (`call_grammar.py`) enforces them, both from
the same row. White space between the parts has no meaning. A call is either one JSON object with
name and arguments, or a name, a mark and the arguments, or each argument stands between tags:

    hermes          <tool_call>{"name": "f", "arguments": {...}}</tool_call>     Qwen, Hermes
    llama3          {"name": "f", "parameters": {...}}; {...}                    Llama 3.1 and later
    mistral         [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]         Mistral to v7
    mistral_named   [TOOL_CALLS]f[ARGS]{...}                                     Mistral from v11
    deepseek        marks with "tool▁call" around: function, f, ```json {...} ```  DeepSeek V3, R1
    deepseek_v31    the same marks around: f, {...}                              DeepSeek V3.1
    harmony         <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}  GPT-OSS
    kimi_k2         <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}  Kimi K2
    qwen3_coder     <tool_call><function=f><parameter=a>1</parameter></function></tool_call>
    glm45           <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>
    generic         as hermes; a system message tells the model so, for templates without tools

Sources: the chat templates of these models.
"""

import re
from dataclasses import astuple, dataclass
from functools import cached_property

from services.gateway.reasoning import harmony_marks


@dataclass(frozen=True)
class Tags:
    """The tags of calls whose arguments are not JSON. An empty `name_end`: a name ends before the
    next tag or line break."""

    name_begin: str
    name_end: str
    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    # Behind all parameters.
    close: str = ""
    # White space that models write: before the name, between key and value, and around a value.
    head_margin: str = ""
    key_margin: str = ""
    value_margin: str = ""

    @cached_property
    def head(self) -> re.Pattern[str]:
        """The beginning of a call, with its name."""
        begin, end = re.escape(self.name_begin), re.escape(self.name_end)
        return re.compile(rf"\s*{begin}([^<>\s][^<>\n]*)" + (end or r"(?=[<\n])"))


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The marks of one family's calls; an empty one is not written."""

    name: str
    # Before all calls, and before and after each.
    opening: str = ""
    list_begin: str = ""
    begin: str = ""
    # Between name and arguments; empty: a call is a JSON object. Before it a model writes more.
    name_end: str = ""
    after_name: str = ""
    # Set: the model writes the id of a call in place of its name, this text, the name, a colon, and
    # the number of the call in its conversation.
    id_begin: str = ""
    end: str = ""
    separator: str = ""
    closing: str = ""
    # The key of the arguments in a call's object.
    arguments_key: str = "arguments"
    # White space that models write around a call's parts.
    margin: str = ""
    # Set: arguments stand between tags.
    tags: Tags | None = None
    # An answer has one call or a message of its own kind, and no text around a call.
    is_alone: bool = False

    @property
    def trigger(self) -> str:
        """The mark that begins calls in a text; empty: the answer begins with the object."""
        return self.opening or self.begin

    @property
    def texts(self) -> tuple[str, ...]:
        """All that may stand around names and arguments."""
        tags = astuple(self.tags) if self.tags else ()
        return (*self.marks, self.name_end, self.after_name, PYTHON_TAG, CALL_ID, *tags)

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks but the one behind the name, the longest first."""
        around = {self.opening, self.list_begin, self.separator, self.closing}
        return tuple(sorted((around | {self.begin, self.end}) - {""}, key=len, reverse=True))


# Llama writes it before a call, and Mistral the id of a call behind its name.
PYTHON_TAG = "<|python_tag|>"
CALL_ID = "[CALL_ID]"
_BEGINS, _ENDS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

GENERIC = CallSyntax("generic", begin="<tool_call>", end="</tool_call>", margin="\n")
SYNTAXES = {
    syntax.name: syntax
    for syntax in (
        GENERIC,
        CallSyntax("hermes", begin="<tool_call>", end="</tool_call>", margin="\n"),
        CallSyntax("llama3", separator=";", arguments_key="parameters"),
        CallSyntax("mistral", opening="[TOOL_CALLS]", list_begin="[", separator=",", closing="]"),
        CallSyntax("mistral_named", begin="[TOOL_CALLS]", name_end="[ARGS]"),
        CallSyntax(
            "deepseek",
            opening=_BEGINS,
            begin=f"{_BEGIN}function{_SEPARATOR}",
            name_end="```json",
            end=f"```{_END}",
            closing=_ENDS,
            margin="\n",
        ),
        CallSyntax(
            "deepseek_v31",
            opening=_BEGINS,
            begin=_BEGIN,
            name_end=_SEPARATOR,
            end=_END,
            closing=_ENDS,
        ),
        CallSyntax(
            "kimi_k2",
            opening="<|tool_calls_section_begin|>",
            begin="<|tool_call_begin|>",
            name_end="<|tool_call_argument_begin|>",
            id_begin="functions.",
            end="<|tool_call_end|>",
            closing="<|tool_calls_section_end|>",
        ),
        CallSyntax(
            "qwen3_coder",
            begin="<tool_call>",
            end="</tool_call>",
            margin="\n",
            tags=Tags(
                *("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>"),
                head_margin="\n",
                value_margin="\n",
            ),
        ),
        CallSyntax(
            "glm45",
            begin="<tool_call>",
            end="</tool_call>",
            margin="\n",
            tags=Tags(
                *("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
                key_margin="\n",
            ),
        ),
        CallSyntax(
            "harmony",
            begin=harmony_marks.CALL_HEADER,
            name_end=harmony_marks.MESSAGE,
            after_name=f" {harmony_marks.CONSTRAIN}json",
            is_alone=True,
        ),
    )
}
