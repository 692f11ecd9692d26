"""`baton top`: what a look at the fleet shows, and its live view on a small terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Static

from baton.cli.top import app as app_module
from baton.cli.top import render
from baton.cli.top.app import FleetApp, TraceScreen
from baton.cli.top.look import Look, look
from baton.localstack.home import Home, StackState
from baton.page.exposition import Samples
from baton.page.fleet_source import Service
from baton.page.fleet_view import FleetView, GatewayRow, Healed, Latency, Reading, WorkerRow

STATE = StackState(1, "http://127.0.0.1:8080/v1")
ROLES = {"decode-1": "decode"}
REQUEST = {
    "request_id": "req_34e36727063cd9548409a2510f9420ec", "tenant": "acme", "stage": "decode",
    "age_s": 1.25, "num_prompt_tokens": 40, "num_output_tokens": 7, "workers": ["decode-1"],
    "model": "demo",
}  # fmt: skip


def a_look(requests: tuple[dict[str, Any], ...] = (REQUEST,), **changes: object) -> Look:
    parts: dict[str, object] = {
        "gateways": [GatewayRow("gateway", True, num_open=3, requests_per_s=2.5)],
        "workers": [
            WorkerRow("decode-1", True, "decode", "demo", 3, kv_share=0.5, output_tokens_per_s=120),
            WorkerRow("decode-2", False, "decode"),
        ],
        "others": {"quota": True},
        "num_queued": 1,
        "queued_prefill_s": {},
        "first_token": Latency(0.02, 0.05),
        "token_gap": Latency(None, None),
        "healed": Healed(2, 1, 0, 0, 0),
    }
    view = FleetView(**{**parts, **changes})  # type: ignore[arg-type]
    return Look(STATE, view, requests, {"decode-1": 12e6})


def test_a_look_shows_workers_handoffs_requests_and_what_was_healed() -> None:
    text = "\n".join(render(a_look()))
    assert "3 open  1 queued  2.5/s" in text
    assert "p50 20 ms  p95 50 ms" in text
    assert "2 streams migrated" in text
    assert "████····  50%" in text
    assert "12 MB/s" in text
    assert REQUEST["request_id"] in text
    assert "DOWN      decode-2" in text
    assert "VIOLATIONS" not in text


def test_violations_and_dead_services_stand_out() -> None:
    text = "\n".join(render(a_look((), violations={"leased": 2}, others={"quota": False})))
    assert "VIOLATIONS leased 2" in text
    assert "DOWN      quota, decode-2" in text
    assert "no open requests" in text


def test_models_have_a_column_only_where_there_are_several() -> None:
    assert "model" not in "\n".join(render(a_look())).split()
    two = [WorkerRow("decode-1", True, "decode", "demo"), WorkerRow("decode-2", True, model="big")]
    assert {"model", "big"} <= set("\n".join(render(a_look(workers=two))).split())


def test_bytes_of_handoffs_are_those_that_came_between_two_reads() -> None:
    page = 'baton_handoff_bytes_total{{direction="received",transport="shm"}} {}\n'
    before = Reading(10.0, {"decode-1": Samples.of_page(page.format(1000))}, ROLES)
    after = Reading(12.0, {"decode-1": Samples.of_page(page.format(5000))}, ROLES)
    assert look(STATE, before, after, []).handoff_per_s == {"decode-1": 2000.0}


class StillLooks:
    """In place of the scraper: an app that is shown the same look each time."""

    def read(self, services: Sequence[Service]) -> Reading:
        return Reading(0.0, {}, {})

    def open_requests(self, services: Sequence[Service]) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetApp:
    """The live view on requests of three ages, of a stack that runs."""
    requests = tuple(
        REQUEST | {"request_id": f"req_{age}", "age_s": float(age)} for age in (2, 30, 11)
    )
    monkeypatch.setattr(app_module, "Scraper", StillLooks)
    monkeypatch.setattr(app_module.looks, "look", lambda *_: a_look(requests))
    monkeypatch.setattr(Home, "read_state", lambda _: STATE)
    # Shown again so often that Textual is idle in between: for that it waits.
    return FleetApp(Home(tmp_path), 0.5)


def shown_ids(app: FleetApp) -> list[str]:
    table = app.query_one("#requests", DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


async def test_the_oldest_request_comes_first_until_another_order_is_asked_for(
    fleet: FleetApp,
) -> None:
    async with fleet.run_test(size=(80, 24)) as pilot:
        while not shown_ids(fleet):
            await pilot.pause()
        assert shown_ids(fleet) == ["req_30", "req_11", "req_2"]
        for column in ("requests", "workers"):
            table = fleet.query_one(f"#{column}", DataTable)
            assert table.virtual_size.width <= 80
        await pilot.press("r")
        while shown_ids(fleet)[0] != "req_2":
            await pilot.pause()


async def test_text_in_the_terminals_colour_never_stands_on_one_of_ours(fleet: FleetApp) -> None:
    # The terminal's may be black or white.
    async with fleet.run_test(size=(80, 24)) as pilot:
        while not shown_ids(fleet):
            await pilot.pause()
        table = fleet.query_one("#requests", DataTable)
        for part in ("header", "cursor", "header-hover", "hover", "header-cursor"):
            style = table.get_component_rich_style(f"datatable--{part}")
            has_own_ground = style.bgcolor is not None and not style.bgcolor.is_default
            has_own_ink = style.color is not None and not style.color.is_default
            assert has_own_ink or not has_own_ground, part


async def test_enter_opens_a_trace_and_q_comes_back_and_then_ends(fleet: FleetApp) -> None:
    async with fleet.run_test(size=(80, 24)) as pilot:
        while not shown_ids(fleet):
            await pilot.pause()
        await pilot.press("down", "enter")
        while not isinstance(fleet.screen, TraceScreen):
            await pilot.pause()
        # The view behind goes on.
        num_looks = fleet.num_looks
        while fleet.num_looks == num_looks:
            await pilot.pause(0.01)
        await pilot.press("q")
        while isinstance(fleet.screen, TraceScreen):
            await pilot.pause()
        await pilot.press("question_mark")
        await pilot.pause()
        assert "the waterfall of the request" in str(fleet.screen.query_one(Static).render())
        await pilot.press("q", "q")
    assert fleet.return_code == 0
