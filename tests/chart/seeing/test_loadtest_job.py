"""The load test's Job: what it is told is understood, and what it needs it may reach."""

import re
from typing import Any

import pytest

from loadtest.__main__ import parser
from loadtest.sweep import parse_rates
from tests.chart.rendered import (
    PROFILES,
    component,
    environment,
    of_component,
    of_kind,
    of_kind_if_any,
    pod_of,
    profile,
    render,
)
from tests.chart.test_chart_network import dialled, egress_ports


def job(**values: Any) -> dict[str, Any]:
    (found,) = of_component(render({"loadtest": {"enabled": True, **values}}), "loadtest")
    return found


def told(found: dict[str, Any]) -> Any:
    """What the program reads from its arguments, and what it leaves to Locust."""
    (container,) = pod_of(found)["spec"]["containers"]
    assert container["command"] == ["python", "-m", "loadtest"]
    return parser().parse_known_args(container["args"])


def test_it_is_there_only_when_it_is_asked_for() -> None:
    jobs = of_kind_if_any(profile("default"), "Job")
    assert not [one for one in jobs if component(one) == "loadtest"]


def test_a_sweep_writes_to_a_claim_and_is_compared_with_an_earlier_one() -> None:
    (found,) = of_component(profile("loadtest"), "loadtest")
    options, rest = told(found)
    assert parse_rates(options.sweep) == [1, 2, 4, 8, 16]
    assert (options.report, options.baseline) == ("/reports/run-1", "/reports/run-0/sweep.json")
    assert (options.scenario, options.duration) == ("reference", "60")
    assert rest == ["--processes=2", "--traces=http://jaeger.example"]
    volumes = {one["name"]: one for one in pod_of(found)["spec"]["volumes"]}
    assert volumes["reports"]["persistentVolumeClaim"] == {"claimName": "reports"}
    assert volumes["auth"]["secret"]["secretName"] == "loadtest-key"
    assert str(options.key_file) == "/etc/baton/auth/key"


def test_users_and_time_are_the_scenarios_unless_they_are_given() -> None:
    options, rest = told(job())
    assert (options.users, options.duration, options.sweep, rest) == (None, None, None, [])
    options, _ = told(job(users=50, seconds=90, baseline="run-0"))
    assert (options.users, options.duration) == (50, "90")
    assert options.baseline == "/reports/run-0/report.json"


def test_a_verdict_is_final_and_another_run_is_another_job() -> None:
    assert job()["spec"]["backoffLimit"] == 0
    assert pod_of(job())["spec"]["restartPolicy"] == "Never"
    names = {job(run=run)["metadata"]["name"] for run in ("run-1", "run-2", "run-1")}
    assert len(names) == 2


@pytest.mark.parametrize("has_envoy", [True, False])
def test_it_asks_as_clients_do_through_the_way_in(has_envoy: bool) -> None:
    values = {"loadtest": {"enabled": True}, "envoy": {"enabled": has_envoy}}
    edges = [edge for edge in dialled(render(values)) if edge[0] == "loadtest"]
    assert edges == [("loadtest", "envoy" if has_envoy else "gateway", 8080)]


def test_another_way_in_is_reached_at_its_port_and_no_other() -> None:
    for url, port in (("https://llm.example", 443), ("http://llm.example:8000", 8000)):
        objects = render({"loadtest": {"enabled": True, "url": url}})
        assert egress_ports(objects, "loadtest") == {port}
        (found,) = of_component(objects, "loadtest")
        assert environment(found)["BASE_URL"] == url
        (policy,) = [p for p in of_kind(objects, "NetworkPolicy") if component(p) == "loadtest"]
        assert not any("to" in rule for rule in policy["spec"]["egress"])


def test_every_profile_takes_a_load_test() -> None:
    for name, values in PROFILES.items():
        given: Any = {**values.get("loadtest", {}), "enabled": True, "url": "https://llm.example"}
        (found,) = of_component(render({**values, "loadtest": given}), "loadtest")
        image = pod_of(found)["spec"]["containers"][0]["image"]
        assert re.search(r"/baton-loadtest:", image), name
