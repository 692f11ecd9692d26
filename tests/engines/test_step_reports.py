"""What every engine tells of its steps."""

import os

from tests.engines.driven_core import DrivenCore


def test_a_step_tells_how_much_it_computed(core: DrivenCore) -> None:
    core.step_sizes.clear()
    core.answer(list(range(300, 350)), max_tokens=3, ignore_eos=True, cache_key=os.urandom(32))
    *prompt, first, second = core.step_sizes  # the prompt may be cut into several steps
    assert sum(num_tokens for num_tokens, _ in prompt) == 50
    assert first == second == (1, 1)
