"""vLLM's logits processor chooses the same tokens on a device as on the host."""

import json
import os
import subprocess
from pathlib import Path

from tests.engines.conftest import VLLM_PYTHON

ROOT = Path(__file__).parents[3]


def test_the_kernels_of_a_device_choose_what_the_host_chooses() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [VLLM_PYTHON, "-m", "tests.engines.devices.device_choice"],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    on_host, on_device = json.loads(ended.stdout.splitlines()[-1])
    assert on_device == on_host
    assert len(on_host["first tokens"]) == 2
    assert len({tuple(tokens) for tokens in on_host.values()}) == len(on_host), "rows differ"
