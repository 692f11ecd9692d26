"""Sequences that are given up at random moments, by the hundred: an engine holds nothing then."""

import os
import random

import pytest

from baton.engine.protocol.messages import Abort, Bind
from tests.engines.conftest import VLLM_PYTHON
from tests.engines.driven_core import DrivenCore

NUM_ABORTS = 500 if VLLM_PYTHON or os.environ.get("BATON_TEST_LONG") else 100
MAX_OPEN = 6
KINDS = {
    "local": {},
    "parked": {"credit": 2},
    "seeded": {"temperature": 0.9, "seed": 3, "presence_penalty": 0.5},
    "prefill": {"kind": "prefill"},
    "remote": {"kind": "remote"},
    "bound": {"kind": "remote"},
}


@pytest.mark.timeout(600)
def test_nothing_is_held_after_hundreds_of_aborts(core: DrivenCore) -> None:
    """The fixture looks at blocks and load when the test is over."""
    rng = random.Random(5)
    left: list[int] = []
    for _ in range(NUM_ABORTS):
        name = rng.choice(list(KINDS))
        start, length = rng.randrange(8), rng.randrange(1, 200)
        seq_id = core.add(
            range(start, start + length),
            max_tokens=rng.randrange(1, 40),
            ignore_eos=True,
            cache_key=bytes([rng.randrange(3)]) * 32,
            **KINDS[name],
        )
        left.append(seq_id)
        for _ in range(rng.randrange(3)):
            core.snapshot()
        if name == "bound" and seq_id in core.admitted:
            core.send(Bind(seq_id))
        if len(left) > MAX_OPEN:
            core.send(Abort(left.pop(rng.randrange(len(left)))))
    core.end(*left)
    core.settle()
    assert core.tokens
