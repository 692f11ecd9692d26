"""Runs an Envoy; with the argument `bootstrap`, only prints the configuration of its start."""

import json
import sys

from baton.runtime import environment, peer_tls
from baton.runtime.process import Process, run
from services.envoy.bootstrap import bootstrap
from services.envoy.envoy_process import run_envoy
from services.envoy.settings import PREFIX, Settings


def _settings() -> tuple[Settings, peer_tls.Settings]:
    own = environment.load(Settings, PREFIX)
    return own, environment.load(peer_tls.Settings, peer_tls.PREFIX)


async def _envoy(process: Process) -> None:
    await run_envoy(process, *_settings())


def main() -> None:
    match sys.argv[1:]:
        case []:
            run("envoy", _envoy)
        case ["bootstrap"]:
            print(json.dumps(bootstrap(*_settings()), indent=1))
        case _:
            print("usage: python -m services.envoy [bootstrap]", file=sys.stderr)
            raise SystemExit(2)


if __name__ == "__main__":
    main()
