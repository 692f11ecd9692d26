"""`baton top`: what a look at the fleet shows."""

import os
import re

import pytest

from baton.cli.top import on_screen, render
from baton.localstack.fleet_view import (
    FleetView,
    GatewayRow,
    Healed,
    Latency,
    WorkerRow,
)
from baton.localstack.home import StackState

STATE = StackState(1, "http://127.0.0.1:8080/v1")
REQUEST = {
    "request_id": "req-1", "tenant": "acme", "stage": "decode", "age_s": 1.25,
    "num_prompt_tokens": 40, "num_output_tokens": 7, "workers": ["decode-1"],
}  # fmt: skip


def view(**changes: object) -> FleetView:
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
    return FleetView(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_look_shows_workers_requests_and_what_was_healed() -> None:
    text = "\n".join(render(view(), [REQUEST], STATE))
    assert "3 open  1 queued  2.5/s" in text
    assert "p50 20 ms  p95 50 ms" in text
    assert "2 streams migrated" in text
    assert "██████······  50%" in text
    assert "decode-2  down" in text
    assert "req-1" in text
    assert "VIOLATIONS" not in text
    assert "DOWN" not in text


def test_violations_and_dead_services_stand_out() -> None:
    text = "\n".join(render(view(violations={"leased": 2}, others={"quota": False}), [], STATE))
    assert "VIOLATIONS leased 2" in text
    assert "DOWN      quota" in text
    assert "no open requests" in text


def test_a_line_or_a_look_that_is_too_long_is_cut_to_the_terminal() -> None:
    lines = render(view(), [REQUEST] * 40, STATE)
    screen = on_screen(lines, os.terminal_size((60, 12)))
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).split("\n")
    assert len(rows) == 12
    assert max(map(len, rows)) == 60


def test_what_is_down_is_red_and_without_colours_nothing_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines, size = render(view(), [], STATE), os.terminal_size((120, 50))
    assert "\x1b[31mdecode-2  down" in on_screen(lines, size)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in on_screen(lines, size)


def test_many_requests_are_cut_to_a_screen() -> None:
    lines = render(view(), [REQUEST] * 40, STATE)
    assert lines[-1] == "and 25 more"
    assert len(lines) < 30
