"""`baton top`: the running fleet in the terminal, live. Reads `/metrics` and the gateways' admin
ports only."""

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from baton.cli.stack import running_state
from baton.localstack.fleet_view import FleetView, Healed, Latency, WorkerRow, fleet_view
from baton.localstack.home import Home, StackState
from baton.localstack.scraper import Scraper

_BAR_CHARS = 12
_SHOWN_REQUESTS = 15
# The terminal's alternate screen, without the cursor; the former content comes back at the end.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Home and clear to the end: less flicker than clearing first.
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _DIM, _RED, _YELLOW, _GREEN, _PLAIN = (
    f"\x1b[{code}m" for code in ("1", "2", "31", "33", "32", "0")
)
_FULL, _NEARLY_FULL = 0.95, 0.8
_FILLED = re.compile("█+")


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
    if is_live:
        print(_ENTER, end="")
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
            print(on_screen(lines, shutil.get_terminal_size()), end="", flush=True)
            before = after
    finally:
        scraper.close()
        if is_live:
            print(_LEAVE, end="", flush=True)


def on_screen(lines: Sequence[str], size: os.terminal_size) -> str:
    """The lines cut to a terminal of this size: a wrapped line would push others off the screen."""
    shown = [_coloured(line[: size.columns]) for line in lines[: size.lines]]
    screen = f"{_CLEAR_LINE}\n".join(shown)
    return f"{_HOME}{screen}{_CLEAR_LINE}{_CLEAR_BELOW}"


def _coloured(line: str) -> str:
    if "NO_COLOR" in os.environ:
        return line
    if line.startswith(("DOWN", "VIOLATIONS")) or line.endswith("  down"):
        return f"{_RED}{line}{_PLAIN}"
    if line.startswith(("worker ", "request ")):
        return f"{_DIM}{line}{_PLAIN}"
    if line.startswith("Baton"):
        return f"{_BOLD}{line}{_PLAIN}"
    return _FILLED.sub(lambda bar: f"{_of_share(len(bar[0]) / _BAR_CHARS)}{bar[0]}{_PLAIN}", line)


def _of_share(share: float) -> str:
    return _RED if share >= _FULL else _YELLOW if share >= _NEARLY_FULL else _GREEN


def render(view: FleetView, requests: Sequence[dict[str, Any]], state: StackState) -> list[str]:
    """The lines of one view."""
    num_open = sum(row.num_open for row in view.gateways)
    rate = sum(row.requests_per_s for row in view.gateways)
    failed = sum(row.failed_per_s for row in view.gateways)
    prompt = sum(row.prompt_tokens_per_s for row in view.workers)
    output = sum(row.output_tokens_per_s for row in view.workers if row.role == "decode")
    lines = [
        f"Baton  {state.base_url}",
        f"requests  {num_open} open  {view.num_queued} queued  {rate:.1f}/s  {failed:.1f}/s failed",
        f"tokens    {prompt:,.0f}/s prompt computed  {output:,.0f}/s output",
        f"latency   first token {_shown(view.first_token)}   between {_shown(view.token_gap)}",
        f"healed    {_healed(view.healed)}",
    ]
    if view.violations:
        shown = ", ".join(f"{check} {count}" for check, count in view.violations.items())
        lines.append(f"VIOLATIONS {shown}")
    down = [name for name, is_up in view.others.items() if not is_up]
    down += [row.name for row in view.gateways if not row.is_up]
    if down:
        lines.append(f"DOWN      {', '.join(down)}")
    return [*lines, "", *_workers(view.workers), "", *_requests(requests)]


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
