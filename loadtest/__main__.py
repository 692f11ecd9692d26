"""`python -m loadtest` (`make loadtest`): a load test of the stack that runs in this folder.

Reads the URL and the key from dev.env, as `make up` writes it, and becomes Locust. Unknown
options go to Locust unread: `--scenario spike`, `--processes 2`, `--headful`.
"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

from baton.localstack.home import Home
from loadtest.deployment import DeploymentError
from loadtest.http_json import fetcher

NO_STACK = 2
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    parser.add_argument("--users", type=int, help="instead of the scenario's")
    parser.add_argument("--duration", help="instead of the scenario's: 90, 2m, 1h")
    parser.add_argument("--scenario", default="mixed")
    parser.add_argument("--report", help="folder; default: .baton/loadtest/TIME-SCENARIO")
    parser.add_argument("--headful", action="store_true", help="Locust's web UI on port 8089")
    options, rest = parser.parse_known_args(arguments)
    if importlib.util.find_spec("locust") is None:
        print("the load test needs Locust; make loadtest installs and runs it", file=sys.stderr)
        return NO_STACK
    home = Home.of_environment()
    found = home.read_dev_env()
    host = found.get("BASE_URL", "").removesuffix("/v1")
    try:
        if not host:
            raise DeploymentError(f"there is no {home.dev_env}")
        fetcher(host, found["API_KEY"])("/v1/models", None)
    except DeploymentError as error:
        print(f"no stack to test ({error}): run `make up` first", file=sys.stderr)
        return NO_STACK
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = options.report or str(
        home.root / "loadtest" / f"{stamp}-{Path(options.scenario).stem}"
    )
    command = [
        sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--host", host,
        "--scenario", options.scenario, "--report", folder, "--only-summary",
        "--json-file", f"{folder}/locust",
        *(() if options.headful else ("--headless",)),
        *(("--users", str(options.users)) if options.users else ()),
        *(("--run-time", options.duration) if options.duration else ()),
        *rest,
    ]  # fmt: skip
    # The key is passed in the environment: every user of the machine can read a command line.
    os.execve(command[0], command, {**os.environ, "API_KEY": found["API_KEY"]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
