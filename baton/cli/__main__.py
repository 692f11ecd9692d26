"""`baton`: one parser, one module per command. Exit status 2 = wrong usage or a clear refusal."""

import argparse
import os
import platform
import sys
from importlib.metadata import version

from baton.cli import explain, keys, roll, size, stack, top, trace, up, usage
from baton.localstack.edge import NoEnvoy
from baton.localstack.home import AlreadyRunning, HomeNotWritable
from baton.localstack.models import ModelNotFound
from baton.localstack.ports import PortTaken
from baton.localstack.redis_server import NoRedisServer
from baton.localstack.supervisor import StartFailed
from baton.wire.key_registry import RegistryError
from baton.wire.protocol import PROTOCOL_VERSION

# Expected refusals: one line on stderr, no traceback.
_REFUSALS = (
    AlreadyRunning,
    HomeNotWritable,
    ModelNotFound,
    NoEnvoy,
    NoRedisServer,
    PortTaken,
    RegistryError,
    StartFailed,
    roll.RollFailed,
    size.SizeRefused,
    stack.NotRunning,
    up.NotEnoughMemory,
    usage.UsageRefused,
)


def main() -> None:
    """Entry point of the console script."""
    parser = argparse.ArgumentParser(prog="baton", description="Disaggregated LLM serving")
    parser.add_argument("--version", action="version", version=version_line())
    commands = parser.add_subparsers(dest="command", required=True)
    for module in (up, stack, top, roll, keys, usage, trace, explain, size):
        module.add_parsers(commands)
    arguments = parser.parse_args()
    try:
        status = arguments.run(arguments)
    except _REFUSALS as error:
        print(f"baton: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # The reader of our output has closed it; Python must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    raise SystemExit(status)


def version_line() -> str:
    """The versions that a bug report needs."""
    baton = version("baton-serving-core")
    return f"baton {baton}, wire v{PROTOCOL_VERSION}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
