"""The ways in which families of models write their reasoning, one row each.

    think      <think>...</think>                          Qwen 3, DeepSeek R1 and V3.1, GLM 4.5
    mistral    [THINK]...[/THINK]                          Magistral, Ministral 3
    harmony    <|channel|>analysis<|message|>...<|end|>    GPT-OSS

Sources: the chat templates of these models, https://cookbook.openai.com/articles/openai-harmony.
"""

from dataclasses import dataclass

from services.gateway.reasoning import harmony_marks


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The marks of one family's reasoning. `answer_begin`: those of an answer that calls nothing,
    behind it; empty where that has none."""

    name: str
    begin: str
    end: str
    answer_begin: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All marks; tokens in them have text even if they are special."""
        return (self.begin, self.end, self.answer_begin)


HARMONY = ReasoningSyntax(
    "harmony",
    f"{harmony_marks.CHANNEL}analysis{harmony_marks.MESSAGE}",
    f"{harmony_marks.END}{harmony_marks.START}assistant",
    f"{harmony_marks.CHANNEL}final{harmony_marks.MESSAGE}",
)
SYNTAXES = {
    syntax.name: syntax
    for syntax in (
        ReasoningSyntax("think", "<think>", "</think>"),
        ReasoningSyntax("mistral", "[THINK]", "[/THINK]"),
        HARMONY,
    )
}
