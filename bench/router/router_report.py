"""From records of the router's benchmark to Markdown. Pure: knows no files and no clocks."""

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
OURS, BEST = "baton", "perfect knowledge"
_HEAD = ["placement", "hit ratio", "TTFT mean s", "TTFT p99 s", "max/mean computed", "shed"]
_HEAD += ["hit ratio / best", "mean TTFT / best"]


def render(records: Sequence[Record]) -> str:
    """All sections for which there are records."""
    replays = [record for record in records if record["part"] == "replay"]
    traces = dict.fromkeys(record["trace"] for record in replays)
    sections = [_replay(name, [r for r in replays if r["trace"] == name]) for name in traces]
    if bursts := [record for record in records if record["part"] == "bursts"]:
        sections.append(_bursts(bursts))
    picks = [record for record in records if record["part"] == "picks"]
    index = [record for record in records if record["part"] == "index"]
    if picks or index:
        sections.append(_picks(picks, index))
    if several := [record for record in records if record["part"] == "routers"]:
        sections.append(_routers(several))
    return "\n\n".join(sections) + "\n"


def _routers(several: Sequence[Record]) -> str:
    first = several[0]
    about = (
        f"Picks of {first['prompt_tokens']:,} tokens over gRPC, {first['num_workers']} workers;"
        " each router has a core of its own."
    )
    rows = [["routers", "picks/s", "beside one"]]
    rows += [
        [
            _routers_name(one),
            f"{one['picks_per_s']:,.0f}",
            f"{one['picks_per_s'] / first['picks_per_s']:.2f}",
        ]
        for one in several
    ]
    return "\n\n".join(["### Several routers", about, table(rows)])


def _routers_name(record: Record) -> str:
    if record["num_routers"] == 1 or record["are_peers"]:
        return str(record["num_routers"])
    return f"{record['num_routers']} that know nothing of each other"


def _picks(picks: Sequence[Record], index: Sequence[Record]) -> str:
    lengths = [key.split("_")[1] for key in picks[0] if key.endswith("_p50_s")] if picks else []
    rows = [["workers", *[f"{int(n):,} tokens p50 / p99 ms" for n in lengths]]]
    rows[0] += ["report us", "view ms", "50 gateways' views"]
    for one in picks:
        row = [str(one["num_workers"])]
        row += [
            f"{one[f'pick_{n}_p50_s'] * 1e3:.2f} / {one[f'pick_{n}_p99_s'] * 1e3:.2f}"
            for n in lengths
        ]
        row += [f"{one['report_s'] * 1e6:.0f}", f"{one['view_s'] * 1e3:.2f}"]
        rows.append([*row, f"{one['views_share']:.1%} of a core"])
    memory = [
        f"Index: {one['num_entries']:,} entries of {one['bytes_per_entry']:.0f} bytes."
        for one in index
    ]
    return "\n\n".join(["### One pick, one core", table(rows), *memory])


def _bursts(records: Sequence[Record]) -> str:
    one = records[0]
    about = (
        f"{one['load']:g} times what {one['num_workers']} prefill workers can compute, and clients"
        f" leave after {one['due_s']:g} s. Goodput: the prompt tokens whose answers began in time,"
        " of those that could have."
    )
    rows = [["trace", "placement", "goodput", "refused", "left", "TTFT p50 / p99 s"]]
    for record in records:
        num = max(1, record["num_requests"])
        rows.append(
            [
                record["trace"],
                f"**{record['policy']}**" if record["policy"] == OURS else record["policy"],
                f"{record['goodput']:.1%}",
                f"{record['num_shed'] / num:.1%}",
                f"{record['num_left'] / num:.1%}",
                f"{record['ttft_p50_s']:.2f} / {record['ttft_p99_s']:.2f}",
            ]
        )
    return f"### Bursts beyond capacity\n\n{about}\n\n{table(rows)}"


def _replay(name: str, records: Sequence[Record]) -> str:
    by_policy = {record["policy"]: record for record in records}
    best, any_one = by_policy.get(BEST), records[-1]
    about = (
        f"{any_one['num_requests']:,} requests in {any_one['duration_s']:,.0f} s,"
        f" {any_one['num_workers']} workers of each role, of which each prefills"
        f" {any_one['prefill_tokens_per_s']:,.0f} tokens/s (load {any_one['load']:.0%} without"
        f" caches), seed {any_one['seed']}."
    )
    rows = [_row(record, best) for record in by_policy.values()]
    return f"### {name.capitalize()}\n\n{about}\n\n{table([_HEAD, *rows])}"


def _row(record: Record, best: Record | None) -> list[str]:
    policy = record["policy"]
    return [
        f"**{policy}**" if policy == OURS else policy,
        f"{record['hit_ratio']:.1%}",
        f"{record['ttft_mean_s']:,.3f}",
        f"{record['ttft_p99_s']:,.2f}",
        f"{record['imbalance']:.2f}",
        f"{record['num_shed'] / max(1, record['num_requests']):.1%}",
        _ratio(record, best, "hit_ratio"),
        _ratio(record, best, "ttft_mean_s"),
    ]


def _ratio(record: Record, best: Record | None, field: str) -> str:
    """The record's figure over the best placement's; a dash where that has none."""
    return f"{record[field] / best[field]:.3f}" if best and best[field] else "-"


def table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
