"""Scenario files, shapes, and the verdict on a run."""

from pathlib import Path

import pytest

from loadtest import scenario
from loadtest.reporting.verdict import evaluate
from loadtest.scenario import Load, ScenarioError, is_good
from loadtest.shapes import users_at


def parse(text: str) -> scenario.Scenario:
    return scenario.parse("s", f'title = "t"\n{text}'.encode(), Path("/folder"))


@pytest.mark.parametrize("path", sorted(scenario.FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_committed_scenarios_can_be_read(path: Path) -> None:
    assert scenario.load(path.stem).slo


def test_a_kind_is_the_known_one_with_what_the_file_says_otherwise() -> None:
    found = parse("[users]\nagent = { weight = 3, output_tokens = 9 }\nchat = { weight = 0 }")
    assert list(found.kinds) == ["agent"]
    assert (found.kinds["agent"].output_tokens, found.kinds["agent"].system_tokens) == (9, 200)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[users]\nchta = {}", "kinds are chat, rag"),
        ("[users]\nchat = { wieght = 1 }", "users.chat.*wieght"),
        ("[users]\nchat = {}\n[slo]\nttft_p98_ms = 1", "ttft_p98_ms"),
        ("[load]\nusers = -1\n[users]\nchat = {}", "load.users"),
        ("", "no kind of user"),
        ('[load]\nshape = "replay"\n[users]\nchat = {}', "replay has no"),
        ("[users", "scenario s"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(text: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        parse(text)


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"mixed.*reference.*replay"):
        scenario.load("nothing")


def test_a_trace_lies_beside_its_scenario() -> None:
    found = parse('[load]\nshape = "replay"\n[trace]\nfile = "x.csv"')
    assert found.trace.file == "/folder/x.csv"


def test_options_win_over_the_file() -> None:
    load = scenario.with_options(Load(users=5, duration_s=60), 9, None, 7.0)
    assert (load.users, load.users_per_s, load.duration_s) == (9, 10.0, 7.0)


def test_goodput_limits_are_the_kinds_own_or_the_scenarios_or_none() -> None:
    found = parse("[users]\nchat = { ttft_ms = 5 }\nbatch = {}\n[goodput]\ntpot_ms = 7")
    assert found.goodput_limits_ms("chat") == (5, 7)
    assert found.goodput_limits_ms("batch") == (None, None)
    assert is_good((5, 7), 5, 7)
    assert not is_good((5, 7), 5, 8)
    assert is_good((None, None), 1e9, 1e9)


def users_over(load: Load) -> list[int | None]:
    return [users_at(load, at_s) for at_s in (0, 3, 39, 40, 59, 60, 99, 100)]


def test_shapes() -> None:
    ramp = Load(shape="ramp", users=100, duration_s=100)
    assert users_over(ramp) == [1, 3, 39, 40, 59, 60, 99, None]
    spike = Load(shape="spike", users=50, quiet_users=2, duration_s=100)
    assert users_over(spike) == [2, 2, 2, 50, 50, 2, 2, None]
    soak = Load(shape="soak", users=10, duration_s=100)
    assert users_over(soak) == [1, 6, 10, 10, 10, 10, 10, None]


def test_upper_and_lower_limits() -> None:
    row = {"ttft_ms": {"p99": 80.0}, "failed_share": 0.0, "goodput_share": 0.5}
    slo = {"ttft_p99_ms": 80, "failed_share": 0, "goodput_share": 0.6}
    assert [one.is_kept for one in evaluate(slo, row)] == [True, True, False]


def test_a_limit_on_what_was_never_measured_is_not_kept() -> None:
    (one,) = evaluate({"late_p99_ms": 5}, {"late_ms": {"p99": None}})
    assert one.actual is None
    assert not one.is_kept
