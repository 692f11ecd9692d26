"""A dashboard as Grafana imports it: what all panels have in common is added here."""

import json
from typing import Any

from tools.dashboards.panels import Dashboard, Panel

_WIDTH = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def rendered(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in dashboard.rows.items():
        panels.append(_heading(len(panels) + 1, heading, top))
        top += 1
        width = _WIDTH // len(row)
        for place, panel in enumerate(row):
            position = {"x": place * width, "y": top, "w": width, "h": _HEIGHT}
            panels.append(_panel(len(panels) + 1, panel, position))
        top += _HEIGHT
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.what,
        "tags": ["baton"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source_variable(), _model_variable()]},
        "links": [_links()],
        "panels": panels,
    }


def _heading(number: int, title: str, top: int) -> dict[str, Any]:
    position = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": position, "panels": []}


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.is_stacked else "none"}
        defaults["custom"] = {
            "fillOpacity": 30 if panel.is_stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": stacking,
        }
        options = {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "list", "placement": "bottom"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            | {"datasource": _SOURCE}
            for index, (query, legend) in enumerate(panel.queries.items())
        ],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}


def _model_variable() -> dict[str, Any]:
    query = "label_values(baton_router_ready_workers, model_name)"
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "models"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "tags": ["baton"],
        "title": "Baton",
        "asDropdown": True,
        "keepTime": True,
        "includeVars": True,
    }


def text(dashboard: Dashboard) -> str:
    """What the file has."""
    return json.dumps(rendered(dashboard), indent=2) + "\n"
