"""Stacks on vLLM's engine beside `vllm serve`, as tables."""

from bench.serving.engines_report import render

LOAD = {
    "part": "served", "measure": "load", "concurrency": 8, "engine": "vllm",
    "output_tokens_per_s": 100.0, "ttft_p50_s": 0.2, "ttft_p99_s": 0.4, "itl_p50_s": 0.01,
    "itl_p95_s": None, "num_errors": 0, "others_cpu": 0.05,
}  # fmt: skip


def test_the_run_with_most_tokens_counts_and_a_missing_figure_is_a_dash() -> None:
    slower = {**LOAD, "output_tokens_per_s": 50.0, "ttft_p50_s": 9.0}
    ours = {**LOAD, "engine": "baton on vllm", "output_tokens_per_s": 200.0}
    text = render([slower, LOAD, ours])
    assert "| 8 | vllm | 100.0 | 200.0 / 400.0 | 10.0 / - | 0 | 0.05 |" in text
    assert "| 8 | baton on vllm | 200.0 |" in text
    assert "9,000.0" not in text


def test_the_cost_of_a_front_is_told_in_microseconds() -> None:
    front = {"part": "front", "batch": 32, "cpu_s_per_token": 7.5e-6, "tokens_per_s": 1500.4}
    assert "| 32 | 7.5 | 1,500 |" in render([front])
