"""The parser of the command line: says in one line what is wrong, and the word that was meant."""

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from baton.system.exit_status import STATUS_MISCONFIGURED

# What argparse says, and the same for people.
_SAID = (
    (re.compile(r"argument ([^:]+): invalid int value: (.*)"), r"\1 \2: must be a whole number"),
    (re.compile(r"argument ([^:]+): invalid float value: (.*)"), r"\1 \2: must be a number"),
    (re.compile(r"argument ([^:]+): invalid _day value: (.*)"), r"\1 \2: say YYYY-MM-DD"),
    (re.compile(r"argument ([^:]+): expected one argument"), r"\1 needs a value"),
    (re.compile(r"argument ([^:]+): not allowed with argument (.*)"), r"\1 or \2, not both"),
    (re.compile(r"the following arguments are required: (.*)"), r"\1 is needed"),
    (re.compile(r"one of the arguments (.*) is required"), r"one of \1 is needed"),
    (re.compile(r"argument ([^:]+): (.*)"), r"\1: \2"),
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest word that would do.

    Each command has `--home`: the folder of the stack, instead of the one that is found.
    """

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._has_home = False
        self._has_commands = False

    def add_subparsers(self, **named: Any) -> Any:
        self._has_commands = True
        return super().add_subparsers(**named)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if not (self._has_home or self._has_commands):
            self._has_home = True
            help_text = "the stack's folder (the nearest .baton here or above)"
            self.add_argument("--home", metavar="FOLDER", help=help_text)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        for pattern, said in _SAID:
            if found := pattern.fullmatch(message):
                message = found.expand(said)
                break
        self.exit(STATUS_MISCONFIGURED, f"{self.prog}: {message}; see: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with the nearest choice and none of the others where one is near."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = nearest(str(value), choices)
        hint = f"did you mean {near}?" if near else f"say one of {', '.join(choices)}"
        option = "/".join(action.option_strings)
        what = f"{option} {value!r}: {hint}" if option else f"there is no {value!r}; {hint}"
        self.exit(STATUS_MISCONFIGURED, f"{self.prog}: {what}\n")

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one word too many"
        option = word.partition("=")[0]
        near = nearest(option, self._option_string_actions)
        return f"there is no option {option}" + (f"; did you mean {near}?" if near else "")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest; empty when none is near."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")
