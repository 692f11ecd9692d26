"""From records of the overload benchmark to Markdown. Pure: knows no files and no clocks."""

from collections.abc import Sequence
from typing import Any

from bench.router.router_report import table

Record = dict[str, Any]
_SHED_HEAD = ["load", "requests", "goodput, of capacity", "TTFT p50 / p99 s"]
_SHED_HEAD += ["refused, by the gateway alone"]
_SHED_HEAD += ["refusal p50 / p99 ms", "by the gateway's stages, ms", "p99 of each, ms", "codes"]
_SHED_HEAD += ["Retry-After p50 / p99 s", "within 1 s of the next wait", "next one then let in"]
_SHED_HEAD += ["cores: stack, client, others", "client late p99 ms"]
# The stages after the first token.
_LATER = {"decode", "settle", "flush"}
_MAX_WAITS = 4
_FAIR_HEAD = ["case", "requests of the first", "its TTFT p50 / p99 s", "p50, p99 of alone"]
_FAIR_HEAD += ["p99 of its stages, ms"]
_FAIR_HEAD += ["answers/s, of capacity", "most ahead of the other", "codes"]
_FAIR_HEAD += ["cores: stack, client, others", "had no core, ms a second"]


def render(records: Sequence[Record]) -> str:
    """All sections for which there are records."""
    by_part: dict[str, list[Record]] = {}
    for record in records:
        by_part.setdefault(record["part"], []).append(record)
    sections = []
    if "environment" in by_part and "capacity" in by_part:
        sections.append(_conditions(by_part["environment"][-1], by_part["capacity"][-1]))
    if "shed" in by_part:
        per_s = by_part["capacity"][-1]["per_s"]
        sections += [_shed(by_part["shed"], per_s), _normal(by_part["normal"][-1])]
    if "fair" in by_part:
        sections.append(_fair(by_part["fair"], by_part["capacity"][-1]["per_s"]))
    return "\n\n".join(sections) + "\n"


def _conditions(environment: Record, capacity: Record) -> str:
    options = environment["options"]
    return (
        f"{options['slots']} batch slots, a step of {options['step_s'] * 1000:g} ms, answers of "
        f"{options['num_output']} tokens +- 50 %, due in {options['due_s']:g} s; 3x for "
        f"{options['seconds']:g} s, seed {options['seed']}. Capacity, closed loop: "
        f"{capacity['per_s']:.2f} answers/s. {environment['cpu']}, {environment['num_cpus']} CPUs."
    )


def _shed(phases: Sequence[Record], per_s: float) -> str:
    rows = [_SHED_HEAD]
    for one in phases:
        rows.append(
            [
                one["phase"],
                str(one["num_requests"]),
                f"{one['goodput_per_s'] / per_s:.2f}",
                _pair(one, "ttft", 1, "{:.2f}"),
                f"{one['num_refused']}, {one['repeated_share']:.0%}",
                _pair(one, "refusal", 1000, "{:.1f}"),
                _pair(one, "gateway_refusal", 1000, "{:.1f}"),
                _stages(one["stage_p99_s"]) or "-",
                _codes(one),
                _pair(one, "retry_after", 1, "{:.0f}"),
                f"{one['retry']['within_1_s']:.0%}" if one["num_refused"] else "-",
                f"{one['retry']['let_in']:.0%}" if one["num_refused"] else "-",
                _cores(one),
                f"{one['client_late_p99_s'] * 1000:.0f}",
            ]
        )
    return table(rows)


def _normal(record: Record) -> str:
    after_s = record["after_s"]
    if after_s is None:
        return "The first tokens were not normal again before the end."
    return f"Normal again {after_s:.1f} s after the load fell from 3x to 0.8x."


def _fair(cases: Sequence[Record], per_s: float) -> str:
    alone = cases[0]
    rows = [_FAIR_HEAD]
    for one in cases:
        ratios = [one[name] / alone[name] for name in ("ttft_p50_s", "ttft_p99_s")]
        rows.append(
            [
                one["case"],
                str(one["num_requests"]),
                _pair(one, "ttft", 1, "{:.2f}"),
                ", ".join(f"{ratio:.2f}x" for ratio in ratios),
                _stages(one["stage_p99_s"]),
                f"{one['per_s'] / per_s:.3f}",
                "-" if one["most_ahead"] is None else str(one["most_ahead"]),
                _codes(one),
                _cores(one),
                _waits(one["waits"]),
            ]
        )
    return table(rows)


def _waits(shares: dict[str, float]) -> str:
    """The processes that waited longest for a core."""
    longest = sorted(shares.items(), key=lambda each: -each[1])[:_MAX_WAITS]
    return ", ".join(f"{name} {share * 1000:.0f}" for name, share in longest)


def _pair(record: Record, name: str, factor: float, form: str) -> str:
    values = [record[f"{name}_p{percent}_s"] for percent in (50, 99)]
    return " / ".join("-" if value is None else form.format(factor * value) for value in values)


def _stages(times: dict[str, float]) -> str:
    """The stages before the first token that take long, largest first."""
    named = sorted(times.items(), key=lambda each: -each[1])
    return ", ".join(
        f"{name} {seconds * 1000:.0f}" for name, seconds in named if name not in _LATER
    )


def _codes(record: Record) -> str:
    return ", ".join(f"{count} {code}" for code, count in record["codes"].items()) or "none"


def _cores(record: Record) -> str:
    return ", ".join(f"{record[f'{name}_cpu']:.2f}" for name in ("stack", "client", "others"))
