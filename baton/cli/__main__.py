"""`baton`: one module per command. Exit status 2 = wrong usage or a clear refusal."""

import os
import platform
import sys
from importlib import import_module
from importlib.metadata import version

from baton.cli.parser import Parser, nearest
from baton.localstack.home import ENV_VARIABLE
from baton.localstack.refusal import Refusal
from baton.system.exit_status import STATUS_MISCONFIGURED
from baton.wire.key_registry import RegistryError
from baton.wire.protocol import PROTOCOL_VERSION

# For each command what it does, and its module: only that of the given one is imported.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "A stack on this machine": {
        "up": ("start it; --detach: in the background", "up"),
        "down": ("stop it", "stack"),
        "status": ("its processes, models and URLs; is it ready?", "status"),
        "logs": ("what its processes wrote; -f: and write", "logs"),
        "open": ("its web page in the browser", "browse"),
        "roll": ("restart every replica, one after the other", "roll"),
        "doctor": ("what is wrong with this machine, and what to type", "doctor"),
    },
    "Requests": {
        "chat": ('talk to the model; chat "question" asks once', "chat"),
        "top": ("the fleet and its open requests, live", "top"),
        "trace": ("the last requests, or where the time of one went", "trace"),
        "explain": ("why a request got its workers", "explain"),
    },
    "Keys and planning": {
        "keys": ("API keys and limits: create, limit, list, revoke", "keys"),
        "usage": ("what tenants, keys and models used", "usage"),
        "size": ("how many workers a model and its traffic need", "size"),
    },
}
COMMANDS = {name: row for group in GROUPS.values() for name, row in group.items()}
_HELP = ("-h", "--help", "help")


def main() -> None:
    """Entry point of the console script."""
    words = sys.argv[1:]
    if not words or words[0] in _HELP:
        print(overview())
        raise SystemExit(0)
    if words[0] == "--version":
        print(version_line())
        raise SystemExit(0)
    if words[0] not in COMMANDS:
        near = nearest(words[0], COMMANDS)
        hint = f"did you mean: baton {near}" if near else "see: baton --help"
        print(f"baton: there is no command {words[0]!r}; {hint}", file=sys.stderr)
        raise SystemExit(STATUS_MISCONFIGURED)
    raise SystemExit(_run(words))


def _run(words: list[str]) -> int:
    """Run one command; returns the exit status."""
    parser = Parser(prog="baton", description="Disaggregated LLM serving")
    commands = parser.add_subparsers(dest="command", required=True)
    import_module(f"baton.cli.{COMMANDS[words[0]][1]}").add_parsers(commands)
    arguments = parser.parse_args(words)
    if arguments.home:
        os.environ[ENV_VARIABLE] = arguments.home
    try:
        return int(arguments.run(arguments))
    except (Refusal, RegistryError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return STATUS_MISCONFIGURED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it; Python must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def overview() -> str:
    """All commands by group."""
    width = max(map(len, COMMANDS))
    lines = ["usage: baton COMMAND ...   (baton COMMAND --help: its options)"]
    for title, commands in GROUPS.items():
        lines += ["", title]
        lines += [f"  {name:<{width}}  {what}" for name, (what, _) in commands.items()]
    lines += ["", "First: baton up, then in another terminal: baton chat"]
    return "\n".join(lines)


def version_line() -> str:
    """The versions that a bug report needs."""
    baton = version("baton-serving-core")
    return f"baton {baton}, wire v{PROTOCOL_VERSION}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
