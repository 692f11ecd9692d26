"""The commands that pages show, and those that no test runs, each with its reason.

A command is run on the stack that tests share (tests/e2e/test_documented_commands.py), or it begins
with one of `NOT_RUN`: then its program, options and names are checked without running it.
"""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md", "CONTRIBUTING.md", "docs/**/*.md", "services/*/*.md", "loadtest/*.md",
    "deploy/**/*.md", "baton/**/*.md",
)  # fmt: skip
# Languages of a fence. Whatever can be typed into a shell is `sh`.
LANGUAGES = {"sh", "python", "js", "json", "yaml", "text", "toml"}

# By reason: how the commands begin that are parsed and not run.
NOT_RUN = {
    "it needs a cluster": (
        "kubectl", "helm", "kind", "tools/kind.sh", "redis", "for pod in $(kubectl",
        "KEY=$(kubectl", 'curl -H "Authorization: Bearer $TOKEN"',
        "baton keys create --release", "baton keys limit --release", "baton keys list --release",
        "baton keys revoke --release",
    ),
    "it downloads, or takes minutes, or starts a stack of its own": (
        "make", "BASE_URL=https://llm.example/v1 API_KEY=... make", "pip install", "pytest",
        "python -m bench",
        "API_KEY=... locust",
    ),
    "it needs no stack, but torch; tests/model/load/test_documented_sizes.py runs it": (
        "baton size", ".venv/bin/baton size",
    ),
    "it does not end": (".venv/bin/baton logs -f",),
    "it restarts what other tests use; tests/chaos/test_rolling_restart.py runs it": (
        ".venv/bin/baton roll",
    ),
    "it kills what other tests use; tests/chaos/test_killed_workers.py does": ("kill -9 PID",),
    "it reads a cluster's usage folders; tests/unit/cli/test_usage.py does": (
        "baton usage --archive",
    ),
}  # fmt: skip
# Programs of the commands that are run.
RUN = {"baton", ".venv/bin/baton", "curl", ".", "for", "sh"}


class Statement(NamedTuple):
    """One command of a page, as it is typed, and its words without the comment."""

    page: str
    text: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The first word that is no value; one whose output is a value, too. Empty without one."""
        named = (re.sub(r"^\w+=\$\(", "", word) for word in self.words)
        return next((word for word in named if not re.match(r"\w+=", word)), "")

    @property
    def why_not_run(self) -> str:
        """The reason; empty when it is run."""
        typed = " ".join(self.text.split())
        for reason, beginnings in NOT_RUN.items():
            if any(begins_with(typed, beginning) for beginning in beginnings):
                return reason
        return ""


def begins_with(typed: str, beginning: str) -> bool:
    """True when a command begins with these words, or with this substitution."""
    return (typed + " ").startswith((f"{beginning} ", f"{beginning}.", f"{beginning}(")) or (
        "$(" in beginning and typed.startswith(beginning)
    )


@cache
def fences() -> list[tuple[str, str, str]]:
    """(page, language, text) of each fenced block."""
    found = []
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", path.read_text(), re.M | re.S)
            found += [(name, language, text) for language, text in blocks]
    return found


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return [text for name, other, text in fences() if (name, other) == (page, language)]


@cache
def statements() -> list[Statement]:
    """All commands of all pages, in their order."""
    return [
        Statement(page, text, words)
        for page, language, block in fences()
        if language == "sh"
        for text in _split(block)
        if (words := tuple(_words(text)))
    ]


def _split(block: str) -> list[str]:
    """The commands of a block: a line, or as many as a quote, a loop or a function has."""
    found, open_text = [], ""
    for line in block.splitlines():
        open_text += line + "\n"
        if not _is_open(open_text):
            found.append(open_text.strip())
            open_text = ""
    assert not open_text, f"the block ends within {open_text!r}"
    return found


def _is_open(text: str) -> bool:
    try:
        words = _words(text)
    except ValueError:  # a quote
        return True
    is_loop = words[:1] == ["for"] and words[-1] != "done"
    is_function = words[1:2] == ["{"] and words[-1] != "}"
    return is_loop or is_function or text.endswith("\\\n")


def _words(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", " "), comments=True)
