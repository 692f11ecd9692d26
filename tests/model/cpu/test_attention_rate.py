"""The benchmark of decode attention counts each key and value once."""

import pytest

from bench.engine.attention_rate import measure
from bench.models import SHAPES

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def test_a_rate_is_of_all_keys_and_values_of_a_step() -> None:
    record = measure("nano", num_seqs=3, num_tokens=40, num_rounds=2)
    step = record["step_s"]
    assert isinstance(step, dict)
    expected = 3 * 40 * SHAPES["nano"].kv_bytes_per_token / step["best"]
    assert record["bytes_per_s"] == pytest.approx(expected)
    assert record["sequences"] == 3
