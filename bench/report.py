"""From records to Markdown: figures side by side, ratios, and the fraction of the machine's limit.

Pure: knows the records of `engine/engine_bench.py`, no files and no clocks. Of the same cell in
several runs the fastest counts.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.model_shape import MachineRates, ModelShape, run_limit_s
from bench.models import SHAPES

Record = dict[str, Any]
Table = list[list[str]]
OURS = "baton"
_MIB = 2**20


def render(records: Sequence[Record]) -> str:
    """All sections for which there are records."""
    sections = [_environment(records), _core(records)]
    for model in _ordered(records, "model"):
        of_model = [record for record in records if record.get("model") == model]
        limits = _Limits(model, machine_rates(records, model))
        sections += [_offline(model, of_model, limits), _served(model, of_model, limits)]
    return "\n\n".join(section for section in sections if section) + "\n"


def machine_rates(records: Iterable[Record], model: str) -> MachineRates | None:
    """The best of all measurements; reads of buffers as large as the model's weights."""
    machine = [record for record in records if record["part"] == "machine"]
    size = str(SHAPES[model].weight_bytes) if model in SHAPES else ""
    reads = [r["read_bytes_per_s"][size] for r in machine if size in r["read_bytes_per_s"]]
    if not reads:
        return None
    return MachineRates(max(reads), max(record["flops"] for record in machine))


def ratio(ours: float | None, theirs: float | None) -> str:
    """Ours over theirs, two digits; a dash when one is missing."""
    return f"{ours / theirs:.2f}" if ours is not None and theirs else "-"


class _Limits:
    """The shortest times that the machine allows for one model, if they are known."""

    def __init__(self, model: str, rates: MachineRates | None) -> None:
        self._shape: ModelShape | None = SHAPES.get(model)
        self._rates = rates

    def share(self, batch: int, num_prompt: int, num_output: int, seconds: float) -> str:
        """The part of the time taken that could not be saved; a dash when unknown."""
        if self._shape is None or self._rates is None:
            return "-"
        limit_s = run_limit_s(self._shape, self._rates, batch, num_prompt, num_output)
        return f"{limit_s / seconds:.0%}"


def _environment(records: Sequence[Record]) -> str:
    found = [record for record in records if record["part"] == "environment"]
    if not found:
        return ""
    last = found[-1]
    versions = dict(last["versions"])
    for record in records:
        versions |= {k: v for k, v in record.get("versions", {}).items() if k == "vllm"}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"- CPU: {last['cpu']}, {last['num_cpus']} cores ({', '.join(last['cpu_features'])}),"
        f" {last['memory_bytes'] / 2**30:.0f} GiB",
        f"- Python {last['python']}; {named}",
    ]
    if held := last.get("isa"):
        lines.append(f"- every engine was held to {held}")
    for model in SHAPES:
        if (rates := machine_rates(records, model)) is not None:
            read = f"{rates.read_bytes_per_s / 1e9:.1f} GB/s"
            size = f"{SHAPES[model].weight_bytes / 1e6:,.0f} MB"
            gemm = f"{rates.flops / 1e12:.2f} TFLOP/s"
            lines.append(f"- limits for {model}: reads of {size} {read}, bf16 products {gemm}")
    return "### Machine\n\n" + "\n".join(lines)


def _core(records: Sequence[Record]) -> str:
    core = [record for record in records if record["part"] == "core"]
    rows = [["measured", "best", "median", "aim"]]
    for one in (r for r in core if r["measure"] == "step"):
        times = [_scaled(one[key], 1e3, "ms", 3) for key in ("best_s", "median_s", "aim_s")]
        rows.append([f"step besides the model, batch {one['batch']}", *times])
    for one in (r for r in core if r["measure"] == "blocks"):
        times = [_scaled(one[key], 1e6, "us", 2) for key in ("best_s", "median_s", "aim_s")]
        name = f"block {one['operation']}, {one['case']}, {one['num_blocks']:,} blocks"
        rows.append([name, *times])
    relay = [["front relays", "core's CPU", "messages/s", "gap share", "gap p50", "gap p99"]]
    for one in (r for r in core if r["measure"] == "relay"):
        gaps = [_scaled(one[key], 1e3, "ms", 2) for key in ("gap_p50_s", "gap_p99_s")]
        cpu = "its own" if one["core_has_own_cpu"] else "shared"
        rate = f"{one['messages_per_s']:,.0f}"
        relay.append([one["mode"], cpu, rate, f"{one['gap_share']:.1%}", *gaps])
    tables = [markdown_table(table) for table in (rows, relay) if len(table) > 1]
    return "\n\n".join(["### The engine besides the model", *tables]) if tables else ""


def _offline(model: str, records: Sequence[Record], limits: _Limits) -> str:
    cells = _fastest(
        (r for r in records if r["part"] == "offline" and "best_s" in r),
        lambda r: (r["kind"], r["batch"], r["engine"]),
        lambda r: -float(r["best_s"]),
    )
    engines = _ordered(cells.values(), "engine")
    peers = [name for name in engines if name != OURS]
    ratios = [f"baton / {name}" for name in peers]
    rows = [["work", "batch", *[f"{name} tok/s" for name in engines], *ratios]]
    rows[0].append("others' CPU")
    for kind, batch in dict.fromkeys(key[:2] for key in cells):
        found = {name: cells.get((kind, batch, name)) for name in engines}
        unit = "prompt_tokens_per_s" if kind == "prefill" else "output_tokens_per_s"
        speed = {name: float(cell[unit]) if cell else None for name, cell in found.items()}
        row = [kind, str(batch), *[_speed(found[n], unit, limits) for n in engines]]
        row += [ratio(speed.get(OURS), speed[name]) for name in peers]
        row += [f"{max(cell['others_cpu'] for cell in found.values() if cell):.2f}"]
        rows.append(row)
    if len(rows) == 1:
        return ""
    return f"### {model}, without servers\n\n{markdown_table(rows)}"


def _speed(cell: Record | None, unit: str, limits: _Limits) -> str:
    """Tokens a second, and in parentheses the share of the limit."""
    if cell is None:
        return "-"
    sizes = (cell["batch"], cell["num_prompt"], cell["num_output"])
    return f"{cell[unit]:,.0f} ({limits.share(*sizes, cell['best_s'])})"


_SERVED_COLUMNS: list[tuple[str, Callable[[Record], str]]] = [
    ("TTFT p50 / p99 ms", lambda r: _all_ms(r, "ttft_p50_s", "ttft_p99_s")),
    ("ITL p50 / p95 / p99 ms", lambda r: _all_ms(r, "itl_p50_s", "itl_p95_s", "itl_p99_s")),
    ("TPOT p50 ms", lambda r: milliseconds(r["tpot_p50_s"])),
    ("requests", lambda r: str(r["num_requests"])),
    ("failed", lambda r: str(r["num_errors"])),
    ("others' CPU", lambda r: f"{r['others_cpu']:.2f}"),
]
_COMPARED = ("output_tokens_per_s", "ttft_p50_s", "itl_p95_s")


def _served(model: str, records: Sequence[Record], limits: _Limits) -> str:
    cells = _fastest(
        (r for r in records if r["part"] == "served" and r.get("measure") == "load"),
        lambda r: (r["concurrency"], r["engine"]),
        lambda r: float(r["output_tokens_per_s"]),
    )
    rows = [["clients", "server", "tok/s", *[name for name, _ in _SERVED_COLUMNS]]]
    rows[0].append("baton / it: tok/s, TTFT p50, ITL p95")
    for (concurrency, engine), cell in cells.items():
        speed = f"{cell['output_tokens_per_s']:,.1f} ({_served_share(cell, limits)})"
        row = [str(concurrency), engine, speed, *[show(cell) for _, show in _SERVED_COLUMNS]]
        ours = cells.get((concurrency, OURS), {})
        ratios = [ratio(ours.get(field), cell[field]) for field in _COMPARED]
        rows.append([*row, "" if engine == OURS else ", ".join(ratios)])
    starts = _starts(records, list(cells.values()))
    tables = [markdown_table(table) for table in (rows, starts) if len(table) > 1]
    return "\n\n".join([f"### {model}, served", *tables]) if tables else ""


def _served_share(cell: Record, limits: _Limits) -> str:
    batch, num_tokens = cell["concurrency"], cell["num_output"]
    if not cell["output_tokens_per_s"]:
        return "-"
    seconds = batch * num_tokens / cell["output_tokens_per_s"]
    return limits.share(batch, cell["num_prompt_tokens"], num_tokens, seconds)


def _starts(records: Sequence[Record], loads: Sequence[Record]) -> Table:
    """Seconds from start to first token; memory of all processes besides weights and KV pool."""
    rows = [["server", "ready s", "first token s", "memory MiB", "besides weights and pool MiB"]]
    starts = _fastest(
        (r for r in records if r.get("measure") == "start" and "first_token_s" in r),
        lambda r: (r["engine"],),
        lambda r: -float(r["first_token_s"]),
    )
    for (engine,), start in starts.items():
        own = [load for load in loads if load["engine"] == engine]
        all_bytes = max((load["memory_bytes"] for load in own), default=0)
        besides = max(
            (load["memory_bytes"] - load["pool_bytes"] - load["weight_bytes"] for load in own),
            default=0,
        )
        seconds = [f"{start[key]:.1f}" for key in ("ready_s", "first_token_s")]
        rows.append([engine, *seconds, f"{all_bytes / _MIB:,.0f}", f"{besides / _MIB:,.0f}"])
    return rows


def _fastest(
    records: Iterable[Record],
    key: Callable[[Record], tuple[Any, ...]],
    speed: Callable[[Record], float],
) -> dict[tuple[Any, ...], Record]:
    best: dict[tuple[Any, ...], Record] = {}
    for record in records:
        known = best.get(key(record))
        if known is None or speed(record) > speed(known):
            best[key(record)] = record
    return best


def _ordered(records: Iterable[Record], field: str) -> list[str]:
    return list(dict.fromkeys(record[field] for record in records if field in record))


def _all_ms(record: Record, *names: str) -> str:
    return " / ".join(milliseconds(record[name]) for name in names)


def milliseconds(seconds: float | None) -> str:
    """The time as a cell of a table; a dash where there is none."""
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def _scaled(seconds: float, factor: float, unit: str, digits: int) -> str:
    return f"{seconds * factor:.{digits}f} {unit}"


def markdown_table(rows: Table) -> str:
    """The rows, of which the first is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
