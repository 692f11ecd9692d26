"""From records of the gateway benchmark to Markdown. Pure: knows no files and no clocks.

CPU time of several runs: the least, because other programs only add to it; percentiles: the median.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.router.router_report import table

Record = dict[str, Any]
# The name of the whole among its parts.
_WHOLE = "all of it"


def render(records: Sequence[Record]) -> str:
    """All sections for which there are records."""
    by_part: dict[str, list[Record]] = {}
    for record in records:
        by_part.setdefault(record["part"], []).append(record)
    sections = [section(by_part[part]) for part, section in _SECTIONS.items() if part in by_part]
    return "\n\n".join(sections) + "\n"


def _environment(records: Sequence[Record]) -> str:
    last = records[-1]
    options = last["options"]
    return (
        f"{last['cpu']}, {last['num_cpus']} CPUs, Python {last['python']}; {options['num_rounds']} "
        f"runs of {options['seconds']:g} s each; gateway processes: {options['num_processes']}."
    )


def _tokens(records: Sequence[Record]) -> str:
    rows = [["128 streams", "CPU us per token", "tokens/s", "events/s", "gateway's cores"]]
    rows[0] += ["/healthz p50 / p99 ms"]
    for pace, runs in _by(records, "pace"):
        best = min(runs, key=lambda run: float(run["us_per_token"]))
        cells = [f"{best['us_per_token']:.1f}"]
        cells += [f"{best[name]:,}" for name in ("tokens_per_s", "events_per_s")]
        rows.append([pace, *cells, f"{best['gateway_cores']:.2f}", _pair(runs, "lag")])
    return table(rows)


def _requests(records: Sequence[Record]) -> str:
    rows = [["connections", "requests/s", "CPU ms per request", "added TTFT p50 / p99 ms"]]
    for load, runs in _by(records, "load"):
        best = min(runs, key=lambda run: float(run["cpu_ms"]["gateway"]))
        cpu = ", ".join(f"{name} {ms:.2f}" for name, ms in best["cpu_ms"].items())
        rate = f"{best['requests_per_s']:,.0f}"
        rows.append([load, rate, cpu, _pair(runs, "added_ttft")])
    return table(rows)


def _ttft(records: Sequence[Record]) -> str:
    return f"{_requests(records)}\n\n{_parts(records)}"


def _parts(records: Sequence[Record]) -> str:
    """The parts of the added time in the run in which it was shortest; they add up."""
    of_load = {
        load: min((run["added_parts_ms"] for run in runs), key=lambda parts: float(parts[_WHOLE]))
        for load, runs in _by(records, "load")
    }
    rows = [["added TTFT, mean ms", *of_load]]
    for name in dict.fromkeys(name for parts in of_load.values() for name in parts):
        rows.append([name, *(f"{parts.get(name, 0.0):.2f}" for parts in of_load.values())])
    return table(rows)


def _idle(records: Sequence[Record]) -> str:
    rows = [["idle streams", "KiB of each stream"]]
    for record in records:
        memory = record["kib_per_stream"].items()
        shown = ", ".join(f"{name} {kib:.1f}" for name, kib in memory)
        rows.append([f"{record['num_streams']:,}", shown])
    return table(rows)


def _peers(records: Sequence[Record]) -> str:
    """A row for each gateway: the least CPU time of each load, the most memory."""
    rows = [["gateway", "CPU us per request", "CPU us per token, 8 streams", "128 streams"]]
    rows[0] += ["tokens/s of 128 streams", "MiB", "requests at the worker per request"]
    for name, runs in _by(records, "name"):
        loads = dict(_by(runs, "load"))
        cells = [_cpu_of(loads.get(load, ())) for load in ("requests", "8 streams", "128 streams")]
        rate = max((float(run["per_s"]) for run in loads.get("128 streams", ())), default=0)
        memory = max(sum(run["memory_mib"].values()) for run in runs)
        asked = max(
            (run["asked_per_request"] for run in runs if "asked_per_request" in run), default=None
        )
        cells += [f"{rate:,.0f}", f"{memory:,}", "-" if asked is None else f"{asked:g}"]
        rows.append([f"{name} {runs[0]['version']}".strip(), *cells])
    return table(rows)


def _cpu_of(runs: Sequence[Record]) -> str:
    """The CPU time of the cheapest run; of several processes the first one's and all of it."""
    every = [run["cpu_us"] for run in runs if run["cpu_us"]]
    best = min(every, key=lambda cpu: float(sum(cpu.values())), default=None)
    if best is None:
        return "-"
    first, *others = best.values()
    whole = f"; with {', '.join(list(best)[1:])} {first + sum(others):,.1f}" if others else ""
    return f"{first:,.1f}{whole}"


_SECTIONS = {
    "environment": _environment,
    "tokens": _tokens,
    "requests": _requests,
    "ttft": _ttft,
    "traces": _requests,
    "idle": _idle,
    "peers": _peers,
}


def _by(records: Sequence[Record], name: str) -> list[tuple[Any, list[Record]]]:
    values = dict.fromkeys(record[name] for record in records)
    return [(value, [r for r in records if r[name] == value]) for value in values]


def _pair(runs: Sequence[Record], name: str) -> str:
    return " / ".join(f"{median(run[f'{name}_p{p}_ms'] for run in runs):.1f}" for p in (50, 99))
