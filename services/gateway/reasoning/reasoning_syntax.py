"""The ways in which families of models write their reasoning, one row each.

    think      <think>...</think>         Qwen 3, DeepSeek R1 and V3.1, GLM 4.5
    mistral    [THINK]...[/THINK]         Magistral, Ministral 3

Sources: the chat templates of these models.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The marks of one family's reasoning."""

    name: str
    begin: str
    end: str

    @property
    def texts(self) -> tuple[str, ...]:
        """All marks; tokens in them have text even if they are special."""
        return (self.begin, self.end)


SYNTAXES = {
    syntax.name: syntax
    for syntax in (
        ReasoningSyntax("think", "<think>", "</think>"),
        ReasoningSyntax("mistral", "[THINK]", "[/THINK]"),
    )
}
