"""`baton roll`: what is restarted, and in which order."""

import asyncio
from pathlib import Path

import pytest

from baton.cli.roll import RollFailed, replicas, roll
from baton.localstack.home import Home, StackState

NAMES = (
    "spans", "redis", "quota-1", "quota-2", "tokenizer", "prefill-1", "decode-1", "decode-2",
    "router", "gateway-1", "gateway-2",
)  # fmt: skip


def state() -> StackState:
    return StackState(1, "http://x/v1", services={name: {"pid": 7} for name in NAMES})


def test_everything_but_the_stores_is_restarted_with_the_gateways_last() -> None:
    ordered = replicas(state(), [])
    assert ordered[-2:] == ["gateway-1", "gateway-2"]
    assert set(NAMES) - set(ordered) == {"spans", "redis"}


def test_a_service_stands_for_its_replicas_and_a_replica_for_itself() -> None:
    assert replicas(state(), ["decode"]) == ["decode-1", "decode-2"]
    assert replicas(state(), ["gateway-2", "tokenizer"]) == ["tokenizer", "gateway-2"]


def test_a_name_that_stands_for_nothing_is_refused() -> None:
    for name in ("redis", "decode-9", "dec"):
        with pytest.raises(RollFailed, match=name):
            replicas(state(), [name])


def test_a_replica_that_does_not_run_is_named_and_no_signal_is_sent(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    with home.lock():
        home.write_state(StackState(1, "", services={"router": {"pid": 0, "endpoint": ""}}))
        with pytest.raises(RollFailed, match="router does not run"):
            asyncio.run(roll(home, ["router"], print))
