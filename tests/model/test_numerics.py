"""bfloat16 on the bundled model stays within the bounds that the engine promises."""

import pytest

from baton.demo_model import demo_model_path
from bench.engine.numerics import MAX_BOUND, MEAN_BOUND, measure_errors

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def test_logprobs_in_bfloat16_are_close_to_float32_on_either_backend():
    compiled, plain, transformers = measure_errors(demo_model_path(), 160)
    assert compiled["way"].startswith("baton, compiled")
    for record in (compiled, plain):
        assert record["is_within_bounds"], record
        assert record["likeliest"]["mean"] < MEAN_BOUND
        assert record["likeliest"]["max"] < MAX_BOUND
    # Sums in float32 where transformers rounds: the compiled step is the more exact one.
    assert compiled["likeliest"]["mean"] < transformers["likeliest"]["mean"]
