"""The live view of `baton top`: two tables that stay where they are while their cells change."""

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from baton.cli.top import look as looks
from baton.localstack.home import Home, StackState
from baton.localstack.waterfall import has_ended, render
from baton.page.scraper import Scraper
from baton.page.span_store import SpanStore

_WIDE_COLUMNS = 110
_FULL, _NEARLY_FULL = 0.95, 0.8
_FIRST = (looks.WORKER_COLUMNS[0], looks.REQUEST_COLUMNS[0])
_KEYS = """\
q          end
Enter      the waterfall of the request under the cursor
Tab        from the workers to the requests and back
↑ ↓ PgDn   move; the mouse works, too
s          sort the requests by the next column
r          turn the order
p          pause, and go on
?          these keys

run: sequences in the batch; wait: for room in the KV pool; parked: their reader is slow
promised: blocks that wait for a prefill; handoff: KV sent or received; hits: prompt tokens cached
"""
_OPEN = "open: its spans come as they end; Esc, and Enter again, shows those of then"


class TraceScreen(Screen[None]):
    """The waterfall of one request."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "back"),
    ]

    def __init__(self, home: Home, request_id: str) -> None:
        super().__init__()
        self._home, self._request_id = home, request_id

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="waterfall", markup=False)
        yield Footer()

    async def on_mount(self) -> None:
        lines = await asyncio.to_thread(self._read)
        self.query_one("#waterfall", Static).update("\n".join(lines))

    def _read(self) -> list[str]:
        if not self._home.spans.exists():
            return ["no spans are kept"]
        with SpanStore(self._home.spans) as store:
            spans = store.of_request(self._request_id)
        lines = render(spans, self.app.size.width - 2) or [f"request {self._request_id}"]
        return lines if has_ended(spans) else [*lines, "", _OPEN]


class KeysScreen(Screen[None]):
    """What the keys and columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "app.pop_screen", "back"),
    ]

    def compose(self) -> ComposeResult:
        yield Static(_KEYS, markup=False)
        yield Footer()


class Requests(DataTable[Text]):
    """The open requests; Enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "trace"),
    ]


class FleetApp(App[None]):
    """The fleet and its open requests, read again every `interval_s`."""

    CSS = """
    #summary { height: auto; padding: 0 1; }
    DataTable { padding: 0; }
    /* Readable in dark and in light terminals: no ground of ours under the terminal's ink. */
    DataTable > .datatable--header { background: ansi_default; text-style: bold underline; }
    DataTable > .datatable--cursor { background: ansi_blue; color: ansi_bright_white; }
    DataTable > .datatable--hover { background: ansi_default; }
    DataTable > .datatable--header-hover { background: ansi_default; }
    DataTable > .datatable--header-cursor { background: ansi_default; }
    #workers { height: auto; max-height: 50%; margin-top: 1; }
    #requests { height: 1fr; margin-top: 1; }
    Static { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("question_mark", "keys", "keys"),
        Binding("tab", "app.focus_next", "other table"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("p", "pause", "pause"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, home: Home, interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self._home, self._interval_s = home, interval_s
        self._scraper = Scraper()
        self._sort_column, self._is_reversed = "age", True
        self._is_paused = False
        self._stopped_at = ""
        self.num_looks = 0
        # Held here: a query finds what is on the screen in front only.
        self._summary = Static("reading ...", id="summary", markup=False)
        self._tables: dict[str, DataTable[Text]] = {
            "workers": DataTable(id="workers", cursor_type="row", cell_padding=0),
            "requests": Requests(id="requests", cursor_type="row", cell_padding=0),
        }

    def compose(self) -> ComposeResult:
        yield self._summary
        yield from self._tables.values()
        yield Footer()

    def on_mount(self) -> None:
        # The colours of the terminal.
        self.theme = "ansi-dark"
        self._tables["requests"].focus()
        self.run_worker(self._watch(), exclusive=True)

    def on_unmount(self) -> None:
        self._scraper.close()

    async def _watch(self) -> None:
        before = None
        while True:
            state = await asyncio.to_thread(self._home.read_state)
            if state is None:
                self._show_stopped()
                before = None
            elif not self._is_paused:
                services = state.fleet().services
                after = await asyncio.to_thread(self._scraper.read, services)
                requests = await asyncio.to_thread(self._scraper.open_requests, services)
                self._show(looks.look(state, before or after, after, requests), state)
                before = after
            await asyncio.sleep(self._interval_s)

    def _show_stopped(self) -> None:
        self._stopped_at = self._stopped_at or f"{time.strftime('%H:%M:%S')}"
        text = f"the stack stopped at {self._stopped_at}; start it with: baton up; q ends this view"
        self._summary.update(Text(text, "bold red"))
        for table in self._tables.values():
            table.clear(columns=True)

    def _show(self, look: looks.Look, state: StackState) -> None:
        self._stopped_at = ""
        self.num_looks += 1
        lines = Text()
        paused = "  paused: p goes on" if self._is_paused else ""
        lines.append(f"Baton  {state.base_url}  {state.web_url}{paused}\n", "bold")
        for line in looks.summary(look):
            is_bad = line.startswith(("DOWN", "VIOLATIONS"))
            lines.append(f"{line}\n", "bold red" if is_bad else "")
        lines.rstrip()
        self._summary.update(lines)
        is_wide = self.size.width >= _WIDE_COLUMNS
        self._fill("workers", looks.WORKER_COLUMNS, looks.worker_rows(look), look.has_models)
        rows = looks.request_rows(look, has_whole_ids=is_wide)
        keys = [str(row["request_id"]) for row in look.requests]
        order = self._order(looks.REQUEST_COLUMNS, rows)
        sorted_rows, sorted_keys = [rows[at] for at in order], [keys[at] for at in order]
        has_models = look.has_models or is_wide
        self._fill("requests", looks.REQUEST_COLUMNS, sorted_rows, has_models, sorted_keys)

    def _fill(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        has_models: bool,
        keys: Sequence[str] = (),
    ) -> None:
        """Show the rows; the cursor stays on its row."""
        table = self._tables[name]
        head, *body = (
            [list(columns), *map(list, rows)] if has_models else looks.without_models(columns, rows)
        )
        at = self._key_at_cursor(table)
        scrolled = table.scroll_y
        table.clear(columns=True)
        for column in head:
            label = column + self._arrow(name, column)
            gap = " " if table.columns else ""
            table.add_column(Text(gap + label, justify=_side(column)), key=column)
        keys = keys or [row[0] for row in body]
        for key, row in zip(keys, body, strict=True):
            cells = [_cell(column, cell) for column, cell in zip(head, row, strict=True)]
            table.add_row(*cells, key=key)
        if at in keys:
            table.move_cursor(row=list(keys).index(at or ""), scroll=False)
            table.scroll_to(y=scrolled, animate=False)

    def _arrow(self, name: str, column: str) -> str:
        if name != "requests" or column != self._sort_column:
            return ""
        return "▼" if self._is_reversed else "▲"

    def _order(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
        place = columns.index(self._sort_column)
        is_text = self._sort_column in looks.TEXTS

        def value(at: int) -> tuple[float, str]:
            cell = rows[at][place]
            return (0.0, cell) if is_text else (float(cell.split()[0] or 0) if cell else 0.0, "")

        return sorted(range(len(rows)), key=value, reverse=self._is_reversed)

    def _key_at_cursor(self, table: "DataTable[Text]") -> str | None:
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "requests" and event.row_key.value:
            self.push_screen(TraceScreen(self._home, event.row_key.value))

    def action_keys(self) -> None:
        self.push_screen(KeysScreen())

    def action_sort(self) -> None:
        columns = looks.REQUEST_COLUMNS
        self._sort_column = columns[(columns.index(self._sort_column) + 1) % len(columns)]

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused


def _side(column: str) -> Literal["left", "right"]:
    return "left" if column in looks.TEXTS else "right"


def _cell(column: str, cell: str) -> Text:
    style = ""
    if cell == "DOWN":
        style = "bold red"
    elif column == "KV blocks" and cell:
        share = float(cell.rpartition(" ")[2].rstrip("%")) / 100
        style = "red" if share >= _FULL else "yellow" if share >= _NEARLY_FULL else "green"
    gap = "" if column in _FIRST else " "
    return Text(gap + cell, style, justify=_side(column))
