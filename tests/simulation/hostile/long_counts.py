"""How many inputs the tests of this folder make; with BATON_TEST_LONG, in parts that processes
share.

A part is ended by its time limit, if it hangs. Each prints how many inputs it sent.
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

IS_LONG = bool(os.environ.get("BATON_TEST_LONG"))
# Shrinking a failure takes Hypothesis up to five minutes.
in_parts = pytest.mark.timeout(1200)


def examples(num: int, num_short: int) -> settings:
    """So many examples in a long run, others each time; or in a short one."""
    if not IS_LONG:
        return settings(max_examples=num_short, suppress_health_check=list(HealthCheck))
    return settings(max_examples=num, derandomize=False, suppress_health_check=list(HealthCheck))


def parts(num: int) -> range:
    """The parts of a long run, or the one part of a short one."""
    return range(num if IS_LONG else 1)


def sources() -> st.SearchStrategy[Random]:
    """Where the inputs of an example are drawn from: from Hypothesis, which makes a failure small.
    In a long run from a number, since Hypothesis takes longer to draw an input than the gateway to
    refuse it."""
    return st.builds(Random, st.integers(0, 2**62)) if IS_LONG else st.randoms()
