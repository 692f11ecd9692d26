"""Every command that a page shows is run by a test, or is at least one that exists.

The list of those that are not run, with the reason of each, is in tests/kit/documented.py.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from baton.cli import up_options
from baton.cli.__main__ import COMMANDS
from baton.cli.parser import Parser
from tests.kit.documented import (
    LANGUAGES,
    NOT_RUN,
    ROOT,
    RUN,
    Statement,
    begins_with,
    fences,
    statements,
)

PARSED = [each for each in statements() if each.why_not_run]
MAKEFILE = (ROOT / "Makefile").read_text()
# What `ARGS` is for, by target.
MODULES = {
    "bench": "bench", "bench-router": "bench", "bench-gateway": "bench", "loadtest": "loadtest",
}  # fmt: skip
# Locust's own, which the load test hands on.
LOCUST = {"--processes", "--host", "--headless", "--master", "--expect-workers"}
# Programs of others, with what is checked of them elsewhere: tests/chart/test_documented_values.py.
OTHERS = {"kubectl", "helm", "kind", "redis", "redis()", "for", "curl", "kill"}


def test_every_fence_says_what_it_is() -> None:
    assert not [(page, text) for page, language, text in fences() if language not in LANGUAGES]


def test_every_block_of_commands_is_shell() -> None:
    blocks = [text for _, language, text in fences() if language == "sh"]
    script = "\n".join(f"part_{i}() {{\n{text}\n}}" for i, text in enumerate(blocks))
    ended = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, check=False
    )
    assert not ended.stderr


def test_every_command_is_run_or_has_a_reason_why_not() -> None:
    # A program that is in neither list: run it in tests/e2e/test_documented_commands.py, or name it
    # with its reason in tests/kit/documented.py.
    unknown = [s for s in statements() if not s.why_not_run and s.program not in {*RUN, ""}]
    assert not unknown
    typed = [" ".join(each.text.split()) for each in statements()]
    for beginnings in NOT_RUN.values():
        for beginning in beginnings:
            assert any(begins_with(text, beginning) for text in typed), f"no page has {beginning}"


def test_a_reason_that_names_a_test_names_one_that_is_there() -> None:
    for reason in NOT_RUN:
        for name in re.findall(r"tests/\S+\.py", reason):
            assert (ROOT / name).exists()


@pytest.mark.parametrize("statement", PARSED, ids=lambda each: f"{each.page}: {each.text[:60]}")
def test_a_command_that_is_not_run_exists_with_its_options(statement: Statement) -> None:
    program, words = statement.program, list(statement.words)
    first = [i for i, word in enumerate(words) if word.endswith(program)]
    arguments = words[first[0] + 1 :]
    if program == "make":
        check_make(arguments)
    elif program.endswith("baton"):
        check_baton(arguments)
    elif program == "python":
        assert arguments[0] == "-m"
        check_module(arguments[1], arguments[2:])
    elif program == "locust":
        check_options(["loadtest"], arguments)
        assert (ROOT / arguments[arguments.index("-f") + 1]).exists()
    elif program == "pytest":
        assert (ROOT / arguments[0]).exists()
    elif program == "pip":
        (extra,) = re.findall(r"\[(\w+)\]", statement.text)
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    elif "/" in program:
        assert (ROOT / program).exists()
    else:
        assert program in OTHERS


def check_make(words: Sequence[str]) -> None:
    """The targets and variables exist, and what ARGS hands on."""
    targets = [word for word in words if "=" not in word]
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.M), target
    readers = [MAKEFILE, *(path.read_text() for path in (ROOT / "tools").glob("*.sh"))]
    readers += [path.read_text() for path in (ROOT / "tests/cluster").glob("*.py")]
    for name in variables:
        assert any(re.search(rf"\b{name}\b", text) for text in readers), name
    arguments = shlex.split(variables.get("ARGS", ""))
    if targets == ["up"]:
        check_baton(["up", *arguments])
    elif arguments:
        check_module(MODULES[targets[0]], arguments)


def check_baton(words: Sequence[str]) -> None:
    """The command line takes them, and a stack could be made of what they say."""
    parser = Parser(prog="baton")
    command = words[0]
    import_module(f"baton.cli.{COMMANDS[command][1]}").add_parsers(
        parser.add_subparsers(dest="command", required=True)
    )
    parsed = parser.parse_args(list(words))
    # Models of others are not here.
    if command == "up" and not parsed.model:
        up_options.read_options(parsed)


def check_module(module: str, words: Sequence[str]) -> None:
    """`python -m MODULE` exists, its first words are kinds of runs, and it has the options."""
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    # A benchmark of GPUs is also started by the general one.
    check_options([module, "bench/gpu"] if module == "bench" else [module], words)


def check_options(modules: Sequence[str], words: Sequence[str]) -> None:
    known = sources(modules)
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and option not in LOCUST:
            assert f'"{option}"' in known, option
    if modules[0].startswith("bench") and words and not words[0].startswith("-"):
        assert f'"{words[0]}"' in known, words[0]


def sources(modules: Sequence[str]) -> str:
    paths: list[Path] = []
    for module in modules:
        path = ROOT / module.replace(".", "/")
        paths += [path.with_suffix(".py")] if path.with_suffix(".py").exists() else []
        paths += path.rglob("*.py")
    return "\n".join(path.read_text() for path in paths)
