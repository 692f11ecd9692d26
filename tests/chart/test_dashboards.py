"""Dashboards and alerts name only what Baton exports, and are what their source makes."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "helm" / "baton" / "files" / "alerts.yaml"
METRIC = re.compile(r"\b(?:vllm:|baton_|gen_ai_)\w+")
# What Prometheus adds when it scrapes.
TARGET_LABELS = {"instance", "component", "le"}
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


def alerts() -> list[dict[str, Any]]:
    return yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every panel and every alert."""
    for dashboard in DASHBOARDS:
        for row in dashboard.rows.values():
            for panel in row:
                for query in panel.queries:
                    yield f"{dashboard.title}: {panel.title}", query
    for alert in alerts():
        yield alert["alert"], alert["expr"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_the_committed_dashboard_is_what_its_source_makes(dashboard) -> None:
    assert file_of(dashboard).read_text() == text(dashboard), "run: python -m tools.dashboards"


def test_every_metric_that_is_looked_at_is_exported_with_the_labels_that_are_used() -> None:
    known = instrument_labels()
    for where, query in expressions():
        metrics = set(METRIC.findall(query))
        assert metrics, where
        assert metrics <= known.keys(), (where, metrics - known.keys())
        exported = set.union(*(known[metric] for metric in metrics)) | TARGET_LABELS
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
        file, anchor = alert["annotations"]["runbook"].split("#")
        assert file == "docs/operations.md"
        assert anchor in headings, alert["alert"]
        assert alert["labels"]["severity"] in ("page", "ticket")


@needs.prometheus
def test_prometheus_itself_takes_the_alerts() -> None:
    check_rules(ALERTS)


def check_rules(file: Path) -> None:
    command = ["promtool", "check", "rules", "--lint=none", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert checked.returncode == 0, checked.stdout + checked.stderr
