"""A worker's core that lists its modules when it ends, and then compiles (test_core_main.py)."""

import gc

# As the product's core, which this one is but for the list.
if __name__ == "__main__":
    gc.disable()

import json
import os
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path

import torch

from baton.worker import core_main

REPORT = "BATON_TEST_CORE_REPORT"


def doubled(values: list[int]) -> list[int]:
    compiled = torch._dynamo.optimize("eager")(lambda tensor: 2 * tensor)
    return compiled(torch.tensor(values)).tolist()


class LateImports(MetaPathFinder):
    """Notes what the thread of the steps imports, and finds nothing itself."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self.names.append(name)


late = LateImports()
_serve = core_main.serve


def serve(*arguments: object) -> None:
    """As the product's, which begins when the model is loaded."""
    sys.meta_path.insert(0, late)
    _serve(*arguments)
    sys.meta_path.remove(late)


if __name__ == "__main__":
    core_main.serve = serve
    status = core_main.main(sys.argv[1:])
    report = {"modules": list(sys.modules), "late": late.names, "doubled": doubled([1, 2, 3])}
    Path(os.environ[REPORT]).write_text(json.dumps(report))
    core_main.end_process(status)
