"""`baton logs`: what the processes of a stack wrote, merged by time; -f goes on."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from baton.cli.parser import nearest
from baton.localstack.home import Home
from baton.localstack.refusal import Refusal

_POLL_S = 0.2
# Enough of the end of a log for --last lines.
_TAIL_BYTES = 256 * 1024
_KNOWN = ("time", "level", "service", "logger", "event")
_LOUD = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add_parsers(commands: Any) -> None:
    help_text = "what the processes of the stack wrote, in order of time"
    parser = commands.add_parser("logs", help=help_text, description=help_text)
    help_text = "a process or a service: gateway, decode, decode-1, up (all)"
    parser.add_argument("names", nargs="*", metavar="NAME", help=help_text)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--last", type=int, default=40, metavar="N", help="so many lines (40)")
    help_text = "warnings and errors, and what no logger wrote"
    parser.add_argument("--problems", action="store_true", help=help_text)
    parser.add_argument("--raw", action="store_true", help="the lines as they were written")
    parser.set_defaults(run=_logs)


def _logs(arguments: argparse.Namespace) -> int:
    paths = chosen(Home.of_environment(), arguments.names)
    width = max(len(path.stem) for path in paths)
    is_coloured = sys.stdout.isatty()
    tails = [Tail(path) for path in paths]

    def lines() -> Iterator[str]:
        # By time; lines of one log without a time stay behind the one before them.
        rows = sorted((row for tail in tails for row in tail.read()), key=lambda row: row[0])
        for _, name, line in rows:
            if not arguments.problems or is_problem(line):
                text = line if arguments.raw else shown(line, is_coloured=is_coloured)
                yield f"{name:<{width}}  {text}"

    before = list(lines())
    print("\n".join(before[max(0, len(before) - arguments.last) :]), flush=True)
    while arguments.follow:
        time.sleep(_POLL_S)
        for line in lines():
            print(line, flush=True)
    return 0


def chosen(home: Home, names: Sequence[str]) -> list[Path]:
    """The logs of these processes and services. Raises Refusal for a name that has none."""
    paths = sorted(home.logs.glob("*.log")) if home.logs.is_dir() else []
    if not paths:
        raise Refusal(f"no logs in {home.logs}: no stack has run there")
    known = [path.stem for path in paths]
    for name in names:
        if not any(_is_of(stem, name) for stem in known):
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise Refusal(f"no process {name!r} has a log; {hint}")
    return [path for path in paths if not names or any(_is_of(path.stem, name) for name in names)]


def _is_of(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(f"{name}-")


class Tail:
    """The whole lines that were added to a log since the last look; a log may begin anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = -1
        self._rest = b""
        self._time = ""

    def read(self) -> list[tuple[str, str, str]]:
        """Rows of time, process and line."""
        rows = []
        for line in self._lines():
            self._time = str(_fields(line).get("time", self._time))
            rows.append((self._time, self._path.stem, line))
        return rows

    def _lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if self._place < 0:
                    self._place = max(0, size - _TAIL_BYTES)
                elif size < self._place:
                    self._place, self._rest = 0, b""
                file.seek(self._place)
                data = self._rest + file.read()
                self._place = file.tell()
        except OSError:
            return []
        *whole, self._rest = data.split(b"\n")
        return [line.decode(errors="replace") for line in whole if line.strip()]


def _fields(line: str) -> dict[str, Any]:
    """The fields of a structured line; none of another."""
    if not line.startswith("{"):
        return {}
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def is_problem(line: str) -> bool:
    """True for a warning, an error, and what no logger wrote, such as a traceback."""
    fields = _fields(line)
    return not fields or fields.get("level") in _LOUD


def shown(line: str, *, is_coloured: bool) -> str:
    """A structured line as people read it: time, level, event, then its fields."""
    fields = _fields(line)
    if not fields:
        return line
    level = str(fields.get("level", ""))
    at, event = str(fields.get("time", ""))[11:23], str(fields.get("event", ""))
    pairs = [f"{key}={_value(value)}" for key, value in fields.items() if key not in _KNOWN]
    head, rest = f"{at} {level:<7} {event}", " ".join(pairs)
    if not is_coloured:
        return f"{head}  {rest}".rstrip()
    return f"{_LOUD.get(level, '')}{head}{_PLAIN}  {_DIM}{rest}{_PLAIN}"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text
