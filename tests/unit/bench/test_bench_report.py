"""Tables from records: ratios, fractions of the limit, the fastest run of a cell."""

from typing import Any

import pytest

from bench.model_shape import MachineRates, ModelShape, decode_limit_s, prefill_limit_s
from bench.models import SHAPES
from bench.options import BadBenchOption, replace_between_marks
from bench.report import ratio, render

SIZE = str(SHAPES["tiny"].weight_bytes)
MACHINE = {"part": "machine", "flops": 1e12, "read_bytes_per_s": {SIZE: 1e10}}


def offline(engine: str, best_s: float, **fields: Any) -> dict[str, Any]:
    cell = {"part": "offline", "model": "tiny", "engine": engine, "kind": "decode", "batch": 8}
    rates = {"output_tokens_per_s": 800 / best_s, "prompt_tokens_per_s": 128 / best_s}
    sizes = {"num_prompt": 16, "num_output": 100, "others_cpu": 0.01}
    return cell | rates | sizes | {"best_s": best_s} | fields


def served(engine: str, speed: float, ttft_s: float) -> dict[str, Any]:
    names = ("ttft_p99_s", "itl_p50_s", "itl_p95_s", "itl_p99_s", "tpot_p50_s")
    return {
        "part": "served",
        "measure": "load",
        "model": "tiny",
        "engine": engine,
        "concurrency": 8,
        "output_tokens_per_s": speed,
        "ttft_p50_s": ttft_s,
        **dict.fromkeys(names, 0.002),
        **{"num_requests": 80, "num_errors": 0, "others_cpu": 0.02},
        **{"num_prompt_tokens": 1040, "num_output": 150},
        **{"memory_bytes": 2**30, "pool_bytes": 2**29, "weight_bytes": 2**28},
    }


def test_ratio_of_what_was_not_measured_is_a_dash() -> None:
    assert ratio(3.0, 2.0) == "1.50"
    assert ratio(None, 2.0) == "-"
    assert ratio(3.0, None) == "-"


def test_offline_table_compares_with_each_peer_and_keeps_the_fastest_run() -> None:
    records = [
        MACHINE,
        offline("baton", 2.0),
        offline("baton", 1.0),
        offline("vllm", 2.0),
        offline("vllm", 9.0, batch=32),
    ]
    table = render(records)
    assert "| decode | 8 | 800 (32%) | 400 (16%) | 2.00 | 0.01 |" in table
    assert "| decode | 32 | - |" in table


def test_served_table_has_ratios_of_rate_and_latency_and_memory_besides_pool() -> None:
    start = {"part": "served", "measure": "start", "model": "tiny", "engine": "vllm"}
    records = [
        served("baton", 150.0, 0.1),
        served("vllm", 100.0, 0.2),
        start | {"ready_s": 30.0, "first_token_s": 31.0},
    ]
    table = render(records)
    assert "| 1.50, 0.50, 1.00 |" in table
    assert "| vllm | 30.0 | 31.0 | 1,024 | 256 |" in table


def test_limits_come_from_bytes_for_decode_and_from_products_for_prefill() -> None:
    shape = ModelShape(1000, 100, 2, 4, 2, 25, 300)
    assert shape.num_layer_weights == 2 * (100 * 25 * 12 + 3 * 100 * 300)
    rates = MachineRates(read_bytes_per_s=1e9, flops=1e15)
    read = shape.weight_bytes + 8 * 50 * shape.kv_bytes_per_token
    assert decode_limit_s(shape, rates, 8, 50) == pytest.approx(read / 1e9)
    slow = MachineRates(read_bytes_per_s=1e15, flops=1e9)
    linear = 2 * (shape.num_layer_weights * 40 + 1000 * 100)
    attention = 4 * (40 * 40 / 2) * 4 * 25 * 2
    assert prefill_limit_s(shape, slow, 40) == pytest.approx((linear + attention) / 1e9)


def test_tables_replace_what_is_between_the_marks() -> None:
    document = "a\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nz\n"
    fresh = replace_between_marks(document, "new\n")
    assert fresh == "a\n<!-- bench:begin -->\nnew\n<!-- bench:end -->\nz\n"
    with pytest.raises(BadBenchOption):
        replace_between_marks("no marks", "new")
