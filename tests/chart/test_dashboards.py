"""Dashboards and alerts name only what Baton exports, and are what their source makes."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from prometheus_client import Counter, Histogram

from baton.runtime.instruments import TallyHistogram
from tests import needs
from tools import reference_tables
from tools.dashboards.__main__ import file_of
from tools.dashboards.boards import DASHBOARDS
from tools.dashboards.grafana import text
from tools.dashboards.look import panels, substituted
from tools.dashboards.panels import OF_RELEASE

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "helm" / "baton" / "files" / "alerts.yaml"
METRIC = re.compile(r"\b(?:vllm:|baton_|gen_ai_)\w+")
# Prometheus' own, and those that rules record.
OTHERS = re.compile(r"\b(?:up\{|baton:\w+:rate5m)")
# What Prometheus adds when it scrapes.
TARGET_LABELS = {"instance", "component", "le", "namespace", "release", "pod"}
RUNBOOKS = "https://github.com/baton-serving/baton/blob/main/docs/operations.md"
_OF_HISTOGRAM = ("_sum", "_count", "_bucket")
SUFFIXES = {
    Counter: ("_total",),
    Histogram: _OF_HISTOGRAM,
    TallyHistogram: _OF_HISTOGRAM,
}


def instrument_labels() -> dict[str, set[str]]:
    """Scraped name -> labels."""
    names: dict[str, set[str]] = {}
    for value in reference_tables.all_metrics():
        for suffix in SUFFIXES.get(type(value), ("",)):
            names[value._name + suffix] = set(value._labelnames)
    return names


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every panel and every rule."""
    for dashboard in DASHBOARDS:
        for row in dashboard.rows.values():
            for panel in row:
                for query in panel.queries:
                    yield f"{dashboard.title}: {panel.title}", query
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_the_committed_dashboard_is_what_its_source_makes(dashboard) -> None:
    assert file_of(dashboard).read_text() == text(dashboard), "run: python -m tools.dashboards"


def test_every_metric_that_is_looked_at_is_exported_with_the_labels_that_are_used() -> None:
    known = instrument_labels()
    for where, query in expressions():
        metrics = set(METRIC.findall(query))
        assert metrics or OTHERS.search(query), where
        assert metrics <= known.keys(), (where, metrics - known.keys())
        exported = set.union(TARGET_LABELS, *(known[metric] for metric in metrics))
        used = set(re.findall(r"(\w+)\s*(?:=~|!=|=|!~)\s*\"", query))
        for grouping in re.findall(r"by \(([^)]*)\)", query):
            used |= {label.strip() for label in grouping.split(",")}
        assert used <= exported, (where, used - exported)


@needs.prometheus
def test_prometheus_itself_takes_every_query(tmp_path: Path) -> None:
    queries = [
        {"record": "x", "expr": substituted(query)}
        for dashboard in DASHBOARDS
        for panel in panels(json.loads(file_of(dashboard).read_text()))
        for query in (target["expr"] for target in panel["targets"])
    ]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": queries}]}))
    check_rules(rules)


def test_no_two_panels_of_a_dashboard_overlap() -> None:
    for dashboard in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(file_of(dashboard).read_text())["panels"]:
            at = panel["gridPos"]
            cells = {
                (at["x"] + across, at["y"] + down)
                for across in range(at["w"])
                for down in range(at["h"])
            }
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells


def test_every_alert_says_what_to_do() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("#").strip()).lower().replace(" ", "-")
        for line in (ROOT / "docs" / "operations.md").read_text().splitlines()
        if line.startswith("#")
    }
    for alert in alerts():
        page, anchor = alert["annotations"]["runbook_url"].split("#")
        assert page == RUNBOOKS
        assert anchor in headings, alert["alert"]
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_every_rule_keeps_namespaces_and_releases_apart() -> None:
    for rule in rules():
        where, query = rule.get("alert") or rule["record"], rule["expr"]
        groupings = re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
        assert all(one.startswith("namespace, release") for one in groupings), where
        assert groupings or OTHERS.search(query), where
        # The chart writes its namespace into the braces.
        selectors = re.findall(r"\b(?:vllm:|baton[_:]|up\b)[a-z0-9_:]*(.?)", query)
        assert set(selectors) == {"{"}, where


def test_every_query_of_a_panel_asks_for_the_chosen_namespace_and_release() -> None:
    for dashboard in DASHBOARDS:
        for row in dashboard.rows.values():
            for panel in row:
                for query in panel.queries:
                    for metric in METRIC.finditer(query):
                        selector = query[metric.end() :].partition("}")[0]
                        assert selector.startswith("{" + OF_RELEASE), (panel.title, metric[0])


def test_panels_lead_to_their_traces_and_the_board_to_the_runbook() -> None:
    for dashboard in DASHBOARDS:
        made = json.loads(file_of(dashboard).read_text())
        names = {one["name"] for one in made["templating"]["list"]}
        assert {"datasource", "namespace", "release", "model", "jaeger", "tempo"} <= names
        assert any(link.get("url", "").startswith(RUNBOOKS) for link in made["links"])
        for panel in panels(made):
            links = panel["fieldConfig"]["defaults"].get("links", [])
            used = set(re.findall(r"\$\{(\w+)[:}]", json.dumps(links)))
            assert used <= names | {"__from", "__to"}
            if panel["type"] == "timeseries":
                for kind, link in zip(("jaeger", "tempo"), links, strict=True):
                    query = parse_qs(urlsplit(link["url"]).query)
                    (pane,) = json.loads(query["panes"][0]).values()
                    assert pane["datasource"] == f"${{{kind}}}"
                    assert pane["range"] == {"from": "${__from}", "to": "${__to}"}


@needs.prometheus
def test_prometheus_itself_takes_the_alerts() -> None:
    check_rules(ALERTS)


def check_rules(file: Path) -> None:
    command = ["promtool", "check", "rules", "--lint=none", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert checked.returncode == 0, checked.stdout + checked.stderr
