"""`python -m loadtest` (`make loadtest`): a load test of the stack that runs in this folder.

Reads the URL and the key from dev.env, as `make up` writes it, and becomes Locust. With `--host` it
tests any server, with the key in API_KEY. `--sweep 1,2,4,8` runs Locust once for each of these
rates, finds the knee, and draws the curve. Unknown options go to Locust unread: `--scenario spike`,
`--processes 2`, `--headful`, `--baseline report.json`.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from loadtest import scenario, sweep
from loadtest.deployment import DeploymentError, inspect
from loadtest.http_json import fetcher
from loadtest.scenario import ScenarioError
from loadtest.sweep import SweepError

KEPT, NOT_KEPT, NO_STACK = 0, 1, 2
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_SWEEP_S = 30.0


class Target(NamedTuple):
    """The server, its key, and where reports go if no folder is named."""

    host: str
    api_key: str
    reports: Path


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    made.add_argument("--host", help="any server, with the key in API_KEY; default: this stack")
    made.add_argument("--key-file", type=Path, help="with --host: the key, instead of API_KEY")
    made.add_argument("--model", default="", help="which one, when several are served")
    made.add_argument("--users", type=int, help="instead of the scenario's")
    made.add_argument("--duration", help="instead of the scenario's: 90, 2m, 1h")
    made.add_argument("--scenario", default="mixed")
    made.add_argument("--report", help="folder; default: .baton/loadtest/TIME-SCENARIO")
    made.add_argument("--headful", action="store_true", help="Locust's web UI on port 8089")
    made.add_argument(
        "--sweep", help="requests a second: 1,2,4,8; each for --duration (30) seconds"
    )
    made.add_argument("--baseline", help="an earlier report.json, with --sweep a sweep.json")
    made.add_argument("--tolerance", type=float, default=0.15, help="by which part worse is fine")
    return made


def main(arguments: list[str]) -> int:
    options, rest = parser().parse_known_args(arguments)
    if importlib.util.find_spec("locust") is None:
        print("the load test needs Locust; make loadtest installs and runs it", file=sys.stderr)
        return NO_STACK
    try:
        target = _target(options)
        fetcher(target.host, target.api_key)("/v1/models", None)
    except DeploymentError as error:
        advice = "" if options.host else ": run `make up` first"
        print(f"no stack to test ({error}){advice}", file=sys.stderr)
        return NO_STACK
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{Path(options.scenario).stem}"
    folder = Path(options.report or target.reports / name)
    # The key is passed in the environment: every user of the machine can read a command line.
    os.environ["API_KEY"] = target.api_key
    locust = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--host", target.host]
    locust += ["--model", options.model] if options.model else []
    if options.sweep:
        return _sweep(options, target, folder, [*locust, "--headless", "--only-summary", *rest])
    command = [
        *locust, "--scenario", options.scenario, "--report", str(folder), "--only-summary",
        "--json-file", f"{folder}/locust",
        *(() if options.headful else ("--headless",)),
        *(("--users", str(options.users)) if options.users else ()),
        *(("--run-time", options.duration) if options.duration else ()),
        *(("--baseline", options.baseline) if options.baseline else ()),
        "--tolerance", str(options.tolerance),
        *rest,
    ]  # fmt: skip
    os.execve(command[0], command, dict(os.environ))


def _target(options: argparse.Namespace) -> Target:
    """Raises DeploymentError."""
    if options.host:
        return Target(options.host, _key(options.key_file), Path("loadtest-reports"))
    # The image of the load test has no other part of Baton.
    from baton.localstack.home import Home

    home = Home.of_environment()
    found = home.read_dev_env()
    host = found.get("BASE_URL", "").removesuffix("/v1")
    if not host:
        raise DeploymentError(f"there is no {home.dev_env}")
    return Target(host, found["API_KEY"], home.root / "loadtest")


def _key(file: Path | None) -> str:
    """Raises DeploymentError."""
    if file is None:
        return os.environ.get("API_KEY", "")
    try:
        return file.read_text().strip()
    except OSError as error:
        raise DeploymentError(f"--key-file {file}: {error.strerror}") from error


def _sweep(options: argparse.Namespace, target: Target, folder: Path, command: list[str]) -> int:
    """Run all rates, write sweep.json and sweep.svg, and compare with an earlier sweep."""
    seconds = float((options.duration or str(_SWEEP_S)).removesuffix("s"))
    try:
        rates = sweep.parse_rates(options.sweep)
        deployment = inspect(fetcher(target.host, target.api_key), options.model)
        chosen, notes = sweep.fitted(scenario.load(options.scenario), deployment)
        before = _earlier(options.baseline)
        print(sweep.HEADINGS, flush=True)
        points = sweep.run(chosen, rates, seconds, folder, command)
    except (SweepError, ScenarioError, DeploymentError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return NO_STACK
    found = sweep.as_dict(chosen, seconds, points, notes)
    (folder / "sweep.json").write_text(json.dumps(found, indent=1))
    (folder / "sweep.svg").write_text(sweep.picture(points, found["knee"]))
    worse = list(sweep.regressions(before, points, options.tolerance)) if before else []
    told = [found["told"], *([sweep.compared(before, points, worse)] if before else []), *worse]
    print("\n".join(["", *notes, sweep.HEADINGS, *map(sweep.line, points), "", *told]))
    print(f"sweep: {folder}/sweep.svg and sweep.json", flush=True)
    return NOT_KEPT if found["knee"] is None or found["is_undecided"] or worse else KEPT


def _earlier(path: str | None) -> dict[str, list[dict[str, float]]]:
    """An earlier sweep.json, empty without one. Raises SweepError."""
    if not path:
        return {}
    try:
        found: dict[str, list[dict[str, float]]] = json.loads(Path(path).read_text())
        return {"points": found["points"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SweepError(f"--baseline {path}: not a sweep.json ({error!r})") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
