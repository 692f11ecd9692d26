"""The syntaxes of tool calls and reasoning, found in chat templates of the families' shapes."""

from pathlib import Path

import pytest

from services.gateway.reasoning import reasoning_syntax as reasoning_rows
from services.gateway.tools.call_syntax import SYNTAXES
from services.tokenizer.settings import REASONING_SYNTAXES, TOOL_SYNTAXES, Settings
from services.tokenizer.syntaxes import UNKNOWN, Syntaxes, reasoning_syntax, tool_syntax

TEMPLATES = Path(__file__).parent / "templates"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", "generic"),
        ("{% if tools %}<tool_call>", "hermes"),
        ('{{ tools }}{"name": function name, "parameters": x}<|start_header_id|>', "llama3"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}[TOOL_CALLS]f[ARGS]", "mistral_named"),
        ("{{ tools }}<｜tool▁call▁begin｜>```json", "deepseek"),
        ("{{ tools }}<｜tool▁call▁begin｜>", "deepseek_v31"),
        ("{{ tools }}<|channel|><|message|>", "harmony"),
        ("{{ tools }}<tool_call><arg_key>", "glm45"),
        ("{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>", "kimi_k2"),
        ("{{ tools }}<call>", UNKNOWN),
    ],
)
def test_the_syntax_is_found_in_the_template(template: str, name: str) -> None:
    assert tool_syntax(template) == name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("chatml", "generic"),
        ("tool_call_tags_with_thinking", "hermes"),
        ("xml_parameters", "qwen3_coder"),
    ],
)
def test_the_syntax_is_found_in_templates_of_real_shapes(file: str, name: str) -> None:
    assert tool_syntax((TEMPLATES / f"{file}.jinja").read_text()) == name


@pytest.mark.parametrize(
    ("template", "added_tokens", "name"),
    [
        ("{{ messages }}", [], "none"),
        ("{{ content.split('</think>')[-1] }}", [], "think"),
        ("{{ messages }}", ["[THINK]", "[/THINK]"], "mistral"),
        ("<|channel|>analysis<|message|>", [], "harmony"),
    ],
)
def test_the_reasoning_is_found_in_template_and_vocabulary(
    template: str, added_tokens: list[str], name: str
) -> None:
    assert reasoning_syntax(template, added_tokens) == name
    found = Syntaxes(reasoning="none").found([template], added_tokens)
    assert found == Syntaxes("generic", "none")


def test_gateways_know_the_syntaxes_that_a_setting_may_name() -> None:
    assert set(TOOL_SYNTAXES) == SYNTAXES.keys()
    assert set(REASONING_SYNTAXES) == {"none", *reasoning_rows.SYNTAXES}
    settings = Settings(models=("m=/m",), tool_syntaxes=("m=hermes",))
    assert settings.syntaxes_of("m") == Syntaxes("hermes", None)
    assert settings.syntaxes_of("other") == Syntaxes()
    with pytest.raises(ValueError, match="expected name= and one of generic, hermes"):
        Settings(models=("m=/m",), tool_syntaxes=("m=xml",))
