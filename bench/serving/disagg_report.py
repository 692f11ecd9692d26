"""The records of `disagg.py` as tables: arrangements side by side, and the break-even curve."""

import statistics
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

_COLUMNS = {
    "itl_p50_s": "ITL p50, ms",
    "itl_p95_s": "ITL p95, ms",
    "itl_p99_s": "ITL p99, ms",
    "long_ttft_p50_s": "long TTFT p50, ms",
    "long_ttft_p95_s": "long TTFT p95, ms",
    "long_first_gap_p50_s": "long, token 1 to 2 p50, ms",
    "stream_tokens_per_s": "output tokens/s",
    "long_tokens_per_s": "long prompt tokens/s",
    "others_cpu": "others' CPU",
}


def render(records: Sequence[Record]) -> str:
    """Conditions, then medians over the rounds of each arrangement, then the last curve."""
    environment = [record for record in records if record["part"] == "environment"]
    runs = [record for record in records if record["part"] == "disagg"]
    points = [record for record in records if record["part"] == "break_even"]
    rates = [record for record in records if record["part"] == "rates"]
    parts = [_conditions(record) for record in environment[-1:]]
    parts += [arrangements_table(runs)] if runs else []
    parts += [_rates(rates[-1]), _curve(points)] if rates and points else []
    return "\n\n".join(parts) + "\n"


def _conditions(record: Record) -> str:
    options = record["options"]
    return (
        f"Model {options['model']}, {options['num_streams']} streams of "
        f"{options['stream_tokens']} tokens at once, {options['num_long']} prompts of "
        f"{options['long_tokens']} tokens meanwhile; two workers of one thread each. "
        f"{record['cpu']}, {record['num_cpus']} CPUs; Python {record['python']}."
    )


def arrangements_table(runs: Sequence[Record]) -> str:
    rows = []
    for name in dict.fromkeys(record["arrangement"] for record in runs):
        mine = [record for record in runs if record["arrangement"] == name]
        cells = [_median(mine, key) for key in _COLUMNS]
        rows.append([name, str(len(mine)), *cells, str(sum(r["num_errors"] for r in mine))])
    return _table(["", "rounds", *_COLUMNS.values(), "errors"], rows)


def _median(records: Sequence[Record], key: str) -> str:
    values = [record[key] for record in records if record.get(key) is not None]
    if not values:
        return "-"
    median = statistics.median(values)
    return f"{median * 1000:.1f}" if key.endswith("_s") and "per_s" not in key else f"{median:.1f}"


def _rates(rates: Record) -> str:
    handoff = rates["handoff_bytes_per_s"]
    more = f"1 s per {handoff / 1e6:.0f} MB" if handoff else "more, not measured"
    return (
        f"Rates that the workers of *auto* reported: prefill {rates['prefill_tokens_per_s']:.0f} "
        f"tokens/s on the prefill worker and {rates['local_prefill_tokens_per_s']:.0f} on the "
        f"decode worker, in chunks of {rates['chunk_tokens']} beside decodes; decode step "
        f"{rates['decode_step_s'] * 1000:.1f} ms; a handoff adds "
        f"{rates['handoff_s'] * 1000:.1f} ms and {more}; blocks "
        f"of {rates['block_size']} tokens have {rates['block_bytes'] / 1024:.0f} KiB."
    )


def _curve(points: Sequence[Record]) -> str:
    """One row per streams and length; where its prompt is prefilled, by cached share."""
    last = {
        (p["num_running"], p["num_prompt_tokens"], p["cached_share"]): p["is_local"] for p in points
    }
    shares = sorted({share for _, _, share in last})
    rows = [
        [
            str(num_running),
            str(num_tokens),
            *("local" if last[num_running, num_tokens, share] else "remote" for share in shares),
        ]
        for num_running, num_tokens in sorted({key[:2] for key in last})
    ]
    head = ["streams", "prompt tokens", *(f"{share:.0%} cached" for share in shares)]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
