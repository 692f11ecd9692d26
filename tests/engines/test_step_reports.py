"""What every engine tells of a step besides its tokens."""

import os

from tests.engines.driven_core import DrivenCore


def test_a_step_tells_how_much_it_computed(core: DrivenCore) -> None:
    core.step_sizes.clear()
    core.answer(list(range(300, 350)), max_tokens=3, ignore_eos=True, cache_key=os.urandom(32))
    assert core.step_sizes == [(50, 1), (1, 1), (1, 1)]
