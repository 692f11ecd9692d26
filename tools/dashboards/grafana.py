"""A dashboard as Grafana imports it, with the properties that all panels share."""

import json
from typing import Any
from urllib.parse import quote

from tools.dashboards.panels import OF_MODEL, OF_RELEASE, OF_WORKER, Dashboard, Panel

_WIDTH = 24
_HEIGHT = 8
# A series has the same colour everywhere; series without a colour here get Grafana's own.
_COLOURS = {
    "p50": "green",
    "p95": "orange",
    "p99": "red",
    "prompt": "blue",
    "output": "green",
    "in gateways": "blue",
    "running": "green",
    "queued in the router": "orange",
    "parked: their readers stall": "purple",
    "foreseen by the router": "blue",
}
# More stages than Grafana has colours.
_STAGES = {
    "auth": "#8e8e99",
    "validate": "#b8b8c2",
    "tokenize": "#39c5cf",
    "reserve": "#b083f0",
    "pick": "#e0b400",
    "queue": "#f2495c",
    "prefill": "#8ab8ff",
    "admit": "#ffcb7d",
    "prefill.queue": "#c4162a",
    "prefill.compute": "#ff9830",
    "handoff": "#3274d9",
    "decode": "#73bf69",
    "move": "#f778ba",
    "flush": "#5a7a5a",
    "settle": "#7c5bb8",
}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The chart puts the address of the values in its place.
_RUNBOOKS = "https://github.com/baton-serving/baton/blob/main/docs/operations.md"
# The traces of a panel's minutes: a query of Explore for each kind of source that Grafana may have.
_SLOW = "1s"
_SERVICE = "baton-gateway"
_TRACES = {
    "jaeger": {"queryType": "search", "service": _SERVICE, "minDuration": _SLOW, "limit": 20},
    "tempo": {
        "queryType": "traceql",
        "query": f'{{resource.service.name="{_SERVICE}" && duration>{_SLOW}}}',
        "limit": 20,
    },
}


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
        "templating": {"list": _variables(dashboard)},
        "links": [_boards(), _runbook()],
        "panels": panels,
    }


def _heading(number: int, title: str, top: int) -> dict[str, Any]:
    position = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": position, "panels": []}


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _TIME_OPTIONS if panel.kind == "timeseries" else _FIGURE_OPTIONS,
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            | {"datasource": _SOURCE}
            for index, (query, legend) in enumerate(panel.queries.items())
        ],
    }


_TIME_OPTIONS = {
    "tooltip": {"mode": "multi", "sort": "desc"},
    "legend": {"displayMode": "list", "placement": "bottom"},
}
_FIGURE_OPTIONS = {
    "colorMode": "value",
    "graphMode": "none",
    "textMode": "value_and_name",
    "reduceOptions": {"calcs": ["lastNotNull"]},
}


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    given = {"max": panel.most, "decimals": panel.decimals, "noValue": panel.nothing or None}
    defaults |= {name: value for name, value in given.items() if value is not None}
    steps = dict(panel.colours)
    if panel.kind == "timeseries":
        defaults["links"] = _trace_links()
        defaults["custom"] = {
            "fillOpacity": 30 if panel.is_stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
        }
        if panel.limit is not None:
            defaults["custom"]["thresholdsStyle"] = {"mode": "dashed"}
            steps[panel.limit] = "red"
    if steps:
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [
                {"value": None, "color": "green"},
                *({"value": value, "color": steps[value]} for value in sorted(steps)),
            ],
        }
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """Colours of the series whose names are known."""
    legends = panel.queries.values()
    named = {name: _COLOURS[name] for name in legends if name in _COLOURS}
    if "{{stage}}" in legends:
        named |= _STAGES
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in named.items()
    ]


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    """The sources, then what to look at, from the large to the small."""
    ready = "baton_router_ready_workers"
    variables = [
        _source("datasource", "Source", "prometheus"),
        _choice("namespace", "Namespace", f"label_values({ready}, namespace)"),
        _choice("release", "Release", f'label_values({ready}{{namespace=~"$namespace"}}, release)'),
        _choice("model", "Model", f"label_values({ready}{{{OF_RELEASE}}}, model_name)"),
    ]
    panels = [panel for row in dashboard.rows.values() for panel in row]
    if any(OF_WORKER in query for panel in panels for query in panel.queries):
        workers = f"label_values(vllm:kv_cache_usage_perc{{{OF_MODEL}}}, instance)"
        variables.append(_choice("instance", "Worker", workers))
    return [*variables, *(_source(kind, f"Traces: {kind.title()}", kind) for kind in _TRACES)]


def _source(name: str, label: str, kind: str) -> dict[str, Any]:
    return {"name": name, "label": label, "type": "datasource", "query": kind}


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    """Any number of a label's values. `.*` also finds series without the label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _trace_links() -> list[dict[str, Any]]:
    """From a panel's minutes to their slow requests."""
    return [
        {
            "title": f"Requests over {_SLOW} in these minutes ({kind.title()})",
            "url": _explore(kind, query),
            "targetBlank": True,
        }
        for kind, query in _TRACES.items()
    ]


def _explore(kind: str, query: dict[str, Any]) -> str:
    source = f"${{{kind}}}"
    pane = {
        "datasource": source,
        "queries": [{"refId": "A", "datasource": {"type": kind, "uid": source}, **query}],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    # Grafana finds its variables in the text: their signs are not encoded.
    return "/explore?schemaVersion=1&panes=" + quote(json.dumps({"traces": pane}), safe="${}")


def _boards() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "tags": ["baton"],
        "title": "Baton",
        "asDropdown": True,
        "keepTime": True,
        "includeVars": True,
    }


def _runbook() -> dict[str, Any]:
    return {
        "type": "link",
        "title": "Runbook",
        "url": f"{_RUNBOOKS}#metrics-by-question",
        "icon": "doc",
        "targetBlank": True,
    }


def text(dashboard: Dashboard) -> str:
    """The content of the file."""
    return json.dumps(rendered(dashboard), indent=2) + "\n"
