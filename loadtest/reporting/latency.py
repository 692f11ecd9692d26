"""Percentiles of first token and token gaps, and rates, from a load generator's answers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest rank; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def summarize(answer: dict[str, Any]) -> dict[str, Any]:
    """Latencies and rates of one run of `raw_client.py`.

    ttft = request to first text; itl = between two events with text; tpot = per token after the
    first, by the server's own count.
    """
    requests = answer["requests"]
    ttft = [one["text_times_s"][0] - one["began_s"] for one in requests]
    itl = [b - a for one in requests for a, b in pairwise(one["text_times_s"])]
    tpot = [_tpot_s(one) for one in requests if one["num_output_tokens"] > 1]
    num_tokens = sum(one["num_output_tokens"] for one in requests)
    wall_s = answer["wall_s"]
    return {
        "num_requests": len(requests),
        "num_errors": len(answer["errors"]),
        "first_error": answer["errors"][0] if answer["errors"] else None,
        "wall_s": wall_s,
        "output_tokens_per_s": num_tokens / wall_s,
        "requests_per_s": len(requests) / wall_s,
        "num_output_tokens": num_tokens,
        "num_prompt_tokens": max((one["num_prompt_tokens"] for one in requests), default=0),
        **_percentiles("ttft", ttft, (50, 99)),
        **_percentiles("itl", itl, (50, 95, 99)),
        **_percentiles("tpot", tpot, (50, 99)),
        "load_cpu": answer["cpu_s"] / wall_s,
    }


def _tpot_s(request: dict[str, Any]) -> float:
    times = request["text_times_s"]
    return float((times[-1] - times[0]) / (request["num_output_tokens"] - 1))


def _percentiles(
    name: str, values: list[float], percents: tuple[int, ...]
) -> dict[str, float | None]:
    return {f"{name}_p{percent}_s": percentile(values, percent) for percent in percents}
