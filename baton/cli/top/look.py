"""One look at the fleet: what `baton top` shows, as lines and as rows of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from baton.localstack.home import StackState
from baton.page.exposition import Samples, grown
from baton.page.fleet_source import WORKER_ROLES
from baton.page.fleet_view import FleetView, Healed, Latency, Reading, WorkerRow, fleet_view

BAR_CHARS = 8
WORKER_COLUMNS = (
    *("worker", "model", "run", "wait", "parked", "KV blocks", "promised"),
    *("prompt/s", "output/s", "handoff", "hits"),
)
REQUEST_COLUMNS = ("request", "tenant", "model", "stage", "age", "prompt", "output", "runs on")
# Of text; the other columns are numbers.
TEXTS = {"worker", "model", "KV blocks", "request", "tenant", "stage", "runs on"}
_SHORT_ID_CHARS = 16
_BYTES = "baton_handoff_bytes_total"
_EMPTY = Samples()
_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))


@dataclass(frozen=True, slots=True)
class Look:
    """What two reads of the metrics pages and one of the open requests say."""

    state: StackState
    view: FleetView
    requests: Sequence[Mapping[str, Any]]
    # Bytes of KV a second that each worker sent or received.
    handoff_per_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_models(self) -> bool:
        """True when there are several models to tell apart."""
        return len({row.model for row in self.view.workers if row.model}) > 1

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "base_url": self.state.base_url,
            "fleet": asdict(self.view),
            "handoff_bytes_per_s": dict(self.handoff_per_s),
            "requests": list(self.requests),
        }


def look(
    state: StackState, before: Reading, after: Reading, requests: Sequence[Mapping[str, Any]]
) -> Look:
    elapsed_s = max(after.at_s - before.at_s, 1e-3)
    handoff = {
        name: grown(before.pages.get(name) or _EMPTY, page, _BYTES) / elapsed_s
        for name, page in after.of(*WORKER_ROLES).items()
    }
    return Look(state, fleet_view(before, after), requests, handoff)


def summary(look: Look) -> list[str]:
    """The lines above the tables."""
    view = look.view
    rate = sum(row.requests_per_s for row in view.gateways)
    failed = sum(row.failed_per_s for row in view.gateways)
    prompt = sum(row.prompt_tokens_per_s for row in view.workers)
    output = sum(row.output_tokens_per_s for row in view.workers)
    num_open = sum(row.num_open for row in view.gateways)
    lines = [
        f"requests  {num_open} open  {view.num_queued} queued  {rate:.1f}/s  {failed:.1f}/s failed",
        f"tokens    {prompt:,.0f}/s prompt computed  {output:,.0f}/s output",
        f"latency   first token {_shown(view.first_token)}   between {_shown(view.token_gap)}",
    ]
    if queued := ", ".join(f"{role} {s:.1f} s" for role, s in view.queued_prefill_s.items() if s):
        lines.append(f"queued    prompts that take {queued} to compute")
    lines.append(f"healed    {_healed(view.healed)}")
    if view.violations:
        shown = ", ".join(f"{check} {count}" for check, count in view.violations.items())
        lines.append(f"VIOLATIONS {shown}")
    down = [name for name, is_up in view.others.items() if not is_up]
    down += [row.name for row in view.gateways if not row.is_up]
    down += [row.name for row in view.workers if not row.is_up]
    if down:
        lines.append(f"DOWN      {', '.join(down)}")
    return lines


def worker_rows(look: Look) -> list[tuple[str, ...]]:
    """A row for each worker, with a cell for each of WORKER_COLUMNS."""
    return [_worker(row, look.handoff_per_s.get(row.name, 0.0)) for row in look.view.workers]


def _worker(row: WorkerRow, handoff_per_s: float) -> tuple[str, ...]:
    if not row.is_up:
        return (row.name, "DOWN", *[""] * (len(WORKER_COLUMNS) - 2))
    return (
        row.name,
        row.model,
        str(row.num_running),
        str(row.num_waiting),
        str(row.num_parked),
        f"{bar(row.kv_share)} {row.kv_share:4.0%}",
        f"{row.promised_share:.0%}",
        f"{row.prompt_tokens_per_s:,.0f}",
        f"{row.output_tokens_per_s:,.0f}",
        _rate(handoff_per_s),
        "" if row.hit_share is None else f"{row.hit_share:.0%}",
    )


def request_rows(look: Look, *, has_whole_ids: bool = True) -> list[tuple[str, ...]]:
    """A row for each open request, with a cell for each of REQUEST_COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for row in look.requests:
        request_id = str(row["request_id"])
        if not has_whole_ids and len(request_id) > _SHORT_ID_CHARS:
            request_id = f"{request_id[: _SHORT_ID_CHARS - 1]}…"
        workers = ", ".join(row["workers"])
        counts = (str(row["num_prompt_tokens"]), str(row["num_output_tokens"]))
        named = (row["tenant"], row.get("model", ""), row["stage"])
        rows.append((request_id, *named, f"{row['age_s']:.1f} s", *counts, workers))
    return rows


def without_models(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The table without the column `model`, header first; a dead worker stays marked."""
    place = columns.index("model")
    table = [list(columns), *map(list, rows)]
    for row in table:
        if row[place] == "DOWN":
            row[place + 1] = "DOWN"
        del row[place]
    return table


def bar(share: float) -> str:
    filled = round(min(max(share, 0.0), 1.0) * BAR_CHARS)
    # A little is not nothing.
    filled = max(filled, int(share > 0))
    return "█" * filled + "·" * (BAR_CHARS - filled)


def _healed(healed: Healed) -> str:
    """The counts above 0, so that the line fits."""
    counts = (
        (healed.num_moved, "streams migrated"),
        (healed.num_resumed, "connections resumed"),
        (healed.num_bad_blocks, "bad blocks"),
        (healed.num_ejections, "workers ejected"),
        (healed.num_quarantined, "requests quarantined"),
    )
    return "  ".join(f"{count} {what}" for count, what in counts if count) or "nothing"


def _shown(latency: Latency) -> str:
    if latency.p50_s is None or latency.p95_s is None:
        return "-"
    return f"p50 {latency.p50_s * 1000:,.0f} ms  p95 {latency.p95_s * 1000:,.0f} ms"


def _rate(bytes_per_s: float) -> str:
    for size, unit in _UNITS:
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return "-"
