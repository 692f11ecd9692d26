"""The syntax of tool calls, found in chat templates of the families' shapes."""

from pathlib import Path

import pytest

from services.gateway.tools.call_syntax import SYNTAXES
from services.tokenizer.settings import TOOL_SYNTAXES, Settings
from services.tokenizer.tool_syntax import UNKNOWN, tool_syntax

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
        ("{{ tools }}<|channel|>", UNKNOWN),
    ],
)
def test_the_syntax_is_found_in_the_template(template: str, name: str) -> None:
    assert tool_syntax([template]) == name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("chatml", "generic"),
        ("tool_call_tags_with_thinking", "hermes"),
        ("xml_parameters", UNKNOWN),
    ],
)
def test_the_syntax_is_found_in_templates_of_real_shapes(file: str, name: str) -> None:
    assert tool_syntax([(TEMPLATES / f"{file}.jinja").read_text()]) == name


def test_gateways_know_the_syntaxes_that_a_setting_may_name() -> None:
    assert set(TOOL_SYNTAXES) == SYNTAXES.keys()
    settings = Settings(models=("m=/m",), tool_syntaxes=("m=hermes",))
    assert settings.tool_syntax_of("m") == "hermes"
    assert settings.tool_syntax_of("other") is None
    with pytest.raises(ValueError, match="expected name= and one of generic, hermes"):
        Settings(models=("m=/m",), tool_syntaxes=("m=xml",))
