"""A worker of the given role whose core is core.py, or vllm_core.py."""

import importlib
import sys

from baton.worker import program

if __name__ == "__main__":
    program.CORE_MODULE = "tests.chaos.poison.core"
    program.VLLM_CORE_MODULE = "tests.chaos.poison.vllm_core"
    importlib.import_module(f"services.{sys.argv[1]}_worker.__main__").main()
