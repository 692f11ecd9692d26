"""A worker's core that lists its modules when it ends, and then compiles (test_core_main.py)."""

import gc

# As the product's core, which this one is but for the list.
if __name__ == "__main__":
    gc.disable()

import json
import os
import sys
from pathlib import Path

import torch

from baton.worker import core_main

REPORT = "BATON_TEST_CORE_REPORT"


def doubled(values: list[int]) -> list[int]:
    compiled = torch._dynamo.optimize("eager")(lambda tensor: 2 * tensor)
    return compiled(torch.tensor(values)).tolist()


if __name__ == "__main__":
    status = core_main.main(sys.argv[1:])
    report = {"modules": list(sys.modules), "doubled": doubled([1, 2, 3])}
    Path(os.environ[REPORT]).write_text(json.dumps(report))
    core_main.end_process(status)
