"""The records of `engines.py` as tables: of several runs of a cell the one with most tokens counts,
and of streams beside long prompts the medians."""

from collections.abc import Sequence
from typing import Any

from bench.report import markdown_table, milliseconds
from bench.serving.disagg_report import arrangements_table

Record = dict[str, Any]


def render(records: Sequence[Record]) -> str:
    """Conditions, conversations, streams beside long prompts, the front."""
    environment = [record for record in records if record["part"] == "environment"]
    lines = [f"{e['cpu']}, {e['num_cpus']} CPUs; Python {e['python']}." for e in environment[-1:]]
    streams = [record for record in records if record["part"] == "disagg"]
    tables = [_conversations(records), arrangements_table(streams) if streams else ""]
    tables += [_front(records)]
    return "\n\n".join([*lines, *(table for table in tables if table)]) + "\n"


def _conversations(records: Sequence[Record]) -> str:
    best: dict[tuple[int, str], Record] = {}
    for one in (record for record in records if record.get("measure") == "load"):
        key = (one["concurrency"], one["engine"])
        if key not in best or one["output_tokens_per_s"] > best[key]["output_tokens_per_s"]:
            best[key] = one
    rows = [
        ["clients", "server", "tokens/s", "TTFT p50 / p99, ms", "ITL p50 / p95, ms",
         "failed", "others' CPU"],
    ]  # fmt: skip
    for (concurrency, name), one in sorted(best.items(), key=lambda item: item[0][0]):
        ttft = f"{milliseconds(one['ttft_p50_s'])} / {milliseconds(one['ttft_p99_s'])}"
        itl = f"{milliseconds(one['itl_p50_s'])} / {milliseconds(one['itl_p95_s'])}"
        rate = f"{one['output_tokens_per_s']:,.1f}"
        failed, others = str(one["num_errors"]), f"{one['others_cpu']:.2f}"
        rows.append([str(concurrency), name, rate, ttft, itl, failed, others])
    return markdown_table(rows) if best else ""


def _front(records: Sequence[Record]) -> str:
    rows = [["sequences", "front's CPU for a token, us", "tokens/s of the core"]]
    for one in (record for record in records if record["part"] == "front"):
        cost, rate = f"{one['cpu_s_per_token'] * 1e6:.1f}", f"{one['tokens_per_s']:,.0f}"
        rows.append([str(one["batch"]), cost, rate])
    return markdown_table(rows) if len(rows) > 1 else ""
