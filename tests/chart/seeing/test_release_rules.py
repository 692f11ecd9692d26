"""The rules and dashboards that the chart makes: the files, for its own release and its values."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from services.gateway.instruments import TIME_TO_FIRST_TOKEN
from tests import needs
from tests.chart.rendered import CHART, NAMESPACE, of_kind, profile, render
from tests.chart.seeing.rule_tests import RULES

MONITORED = {"monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}}}
PLACE = f'namespace="{NAMESPACE}",release="baton",'


def alerts(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    (made,) = of_kind(objects, "PrometheusRule")
    rules = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def monitored(**changes: Any) -> list[dict[str, Any]]:
    """A release with the pod monitor and with rules, which have these values, too."""
    rules = {**MONITORED["monitoring"]["rules"], **changes.pop("rules", {})}
    return render({"monitoring": {**MONITORED["monitoring"], "rules": rules, **changes}})


def test_every_selector_asks_for_the_releases_own_series_and_all_else_is_the_file() -> None:
    made = alerts(profile("h100-pools"))
    assert made.keys() == RULES.keys()
    for name, rule in made.items():
        selectors = re.findall(r"\b(?:vllm:|baton[_:]|up\b)[a-z0-9_:]*(\{[^}]*\})", rule["expr"])
        assert selectors, name
        assert all(one.startswith("{" + PLACE) for one in selectors), name
        assert rule["expr"].replace(PLACE, "").strip() == RULES[name]["expr"].strip()
        assert {**rule, "expr": ""} == {**RULES[name], "expr": ""}


def test_objectives_severities_labels_and_runbook_are_values() -> None:
    made = alerts(
        monitored(
            rules={
                "severities": {"critical": "page", "warning": "ticket"},
                "alertLabels": {"team": "serving"},
                "matchers": 'job="baton"',
            },
            objectives={"availability": 0.99, "firstToken": {"share": 0.98, "seconds": 2.5}},
            runbooks="https://wiki.example/baton",
        )
    )
    fast = made["BatonFirstTokenBurnsFast"]
    assert fast["labels"] == {"severity": "page", "team": "serving"}
    assert fast["annotations"]["runbook_url"].startswith("https://wiki.example/baton#")
    assert "0.98 of the first tokens come within 2.5 s" in fast["annotations"]["description"]
    assert fast["expr"].count("(1 - 0.98)") == 4
    assert made["BatonAvailabilityBurnsFast"]["expr"].count("(1 - 0.99)") == 4
    assert made["BatonSlowFirstToken"]["expr"].strip().endswith("> 2.5")
    assert made["BatonSlowFirstToken"]["labels"]["severity"] == "ticket"
    assert '{job="baton",' in made["BatonNoReadyWorkers"]["expr"]


def test_a_release_that_nobody_scrapes_by_pod_monitor_asks_for_its_namespace_alone() -> None:
    made = alerts(monitored(podMonitor={"enabled": False}))
    assert f'{{namespace="{NAMESPACE}",}}' in made["BatonNoReadyWorkers"]["expr"]


def test_an_objective_in_seconds_is_a_bound_of_the_histogram() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    objectives = schema["properties"]["monitoring"]["properties"]["objectives"]["properties"]
    bounds = set(objectives["firstToken"]["properties"]["seconds"]["enum"])
    assert bounds <= set(TIME_TO_FIRST_TOKEN._buckets)


@needs.prometheus
def test_prometheus_takes_the_rules_of_a_release(tmp_path: Path) -> None:
    (made,) = of_kind(monitored(), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(made["spec"]))
    checked = subprocess.run(
        ["promtool", "check", "rules", "--lint=none", str(file)], capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_pod_monitor_tells_releases_apart() -> None:
    (monitor,) = of_kind(profile("h100-pools"), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    targets = {one["targetLabel"] for one in endpoint["relabelings"]}
    assert {"component", "release"} <= targets


def test_dashboards_lead_to_the_runbook_of_the_values() -> None:
    values = {"dashboards": {"enabled": True}, "runbooks": "https://wiki.example/baton"}
    boards = [
        text
        for made in of_kind(render({"monitoring": values}), "ConfigMap")
        for name, text in made["data"].items()
        if name.endswith(".json")
    ]
    assert len(boards) >= 4
    for board in boards:
        links = [link.get("url", "") for link in json.loads(board)["links"]]
        assert any(url.startswith("https://wiki.example/baton#") for url in links)
