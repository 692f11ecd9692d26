"""`baton top`: the running fleet in the terminal, live. Reads what `/metrics` and the gateways'
admin ports say; asks nothing of the services that they do not tell anyway."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from baton.cli.stack import running_state
from baton.localstack.fleet_view import FleetView, Latency, WorkerRow, fleet_view
from baton.localstack.home import Home, StackState
from baton.localstack.scraper import Scraper

_BAR_CHARS = 12
_SHOWN_REQUESTS = 15
# Home and clear to the end: less flicker than clearing first.
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("top", help="the fleet, live")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--once", action="store_true", help="print one look and end")
    parser.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    state = running_state(home)
    is_live = sys.stdout.isatty() and not arguments.once
    scraper = Scraper()
    try:
        before = scraper.read(state)
        while True:
            time.sleep(max(0.2, arguments.interval))
            state = running_state(home)
            after = scraper.read(state)
            lines = render(fleet_view(before, after), scraper.open_requests(state), state)
            if not is_live:
                print("\n".join(lines))
                return 0
            screen = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
            print(f"{_HOME}{screen}{_CLEAR_BELOW}", end="", flush=True)
            before = after
    finally:
        scraper.close()


def render(view: FleetView, requests: Sequence[dict[str, Any]], state: StackState) -> list[str]:
    """The lines of one look."""
    num_open = sum(row.num_open for row in view.gateways)
    rate = sum(row.requests_per_s for row in view.gateways)
    failed = sum(row.failed_per_s for row in view.gateways)
    prompt = sum(row.prompt_tokens_per_s for row in view.workers)
    output = sum(row.output_tokens_per_s for row in view.workers if row.role == "decode")
    healed = view.healed
    lines = [
        f"Baton  {state.base_url}",
        f"requests  {num_open} open  {view.num_queued} queued  {rate:.1f}/s  {failed:.1f}/s failed",
        f"tokens    {prompt:,.0f}/s prompt computed  {output:,.0f}/s output",
        f"first token {_shown(view.first_token)}   between tokens {_shown(view.token_gap)}",
        f"healed    {healed.num_moved} streams moved  {healed.num_resumed} connections resumed  "
        f"{healed.num_bad_blocks} bad blocks  {healed.num_ejections} workers left out  "
        f"{healed.num_quarantined} requests quarantined",
    ]
    if view.violations:
        shown = ", ".join(f"{check} {count}" for check, count in view.violations.items())
        lines.append(f"VIOLATIONS {shown}")
    down = [name for name, is_up in view.others.items() if not is_up]
    down += [row.name for row in view.gateways if not row.is_up]
    if down:
        lines.append(f"DOWN      {', '.join(down)}")
    return [*lines, "", *_workers(view.workers), "", *_requests(requests)]


def _workers(rows: Sequence[WorkerRow]) -> list[str]:
    width = max([len(row.name) for row in rows], default=6)
    head = f"{'worker':<{width}}  running waiting parked  {'KV blocks':<{_BAR_CHARS + 5}}  promised"
    lines = [f"{head}  prompt/s  output/s   hits"]
    for row in rows:
        if not row.is_up:
            lines.append(f"{row.name:<{width}}  down")
            continue
        hits = "" if row.hit_share is None else f"{row.hit_share:6.0%}"
        lines.append(
            f"{row.name:<{width}}  {row.num_running:7d} {row.num_waiting:7d} {row.num_parked:6d}  "
            f"{_bar(row.kv_share)} {row.kv_share:4.0%}  {row.promised_share:8.0%}  "
            f"{row.prompt_tokens_per_s:8,.0f}  {row.output_tokens_per_s:8,.0f} {hits}".rstrip()
        )
    return lines


def _requests(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["no open requests"]
    lines = [f"{'request':<36}  {'tenant':<12}  {'stage':<9}  {'age':>7}  prompt  output  worker"]
    for row in rows[:_SHOWN_REQUESTS]:
        lines.append(
            f"{row['request_id'][:36]:<36}  {row['tenant'][:12]:<12}  {row['stage'][:9]:<9}  "
            f"{row['age_s']:6.1f}s  {row['num_prompt_tokens']:6d}  {row['num_output_tokens']:6d}  "
            f"{', '.join(row['workers'])}".rstrip()
        )
    if len(rows) > _SHOWN_REQUESTS:
        lines.append(f"and {len(rows) - _SHOWN_REQUESTS} more")
    return lines


def _bar(share: float) -> str:
    filled = round(min(max(share, 0.0), 1.0) * _BAR_CHARS)
    return "█" * filled + "·" * (_BAR_CHARS - filled)


def _shown(latency: Latency) -> str:
    if latency.p50_s is None or latency.p95_s is None:
        return "-"
    return f"p50 {latency.p50_s * 1000:,.0f} ms  p95 {latency.p95_s * 1000:,.0f} ms"
