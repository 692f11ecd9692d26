"""Renews the tables that end docs/telemetry.md (metrics), docs/configuration.md (settings) and
docs/api.md (caps), and the settings in the chart's schema.

All are made from the code, never typed: `python -m tools.reference_tables`.
"""

import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Counter
from prometheus_client.metrics import MetricWrapperBase

from baton.page import span_receiver
from baton.runtime import instruments as runtime_instruments
from baton.runtime import peer_tls
from baton.runtime.instruments import TallyHistogram
from baton.worker import instruments as worker_instruments
from baton.worker import settings as worker_settings
from services.edge import instruments as edge_instruments
from services.edge import settings as edge_settings
from services.envoy import settings as envoy_settings
from services.gateway import instruments as gateway_instruments
from services.gateway import settings as gateway_settings
from services.page import settings as page_settings
from services.quota import instruments as quota_instruments
from services.quota import settings as quota_settings
from services.router import instruments as router_instruments
from services.router import settings as router_settings
from services.tokenizer import instruments as tokenizer_instruments
from services.tokenizer import settings as tokenizer_settings
from tools import api_caps, chart_settings

ROOT = Path(__file__).parents[1]
INSTRUMENTS = (
    worker_instruments,
    runtime_instruments,
    quota_instruments,
    router_instruments,
    gateway_instruments,
    tokenizer_instruments,
    edge_instruments,
)
SETTINGS = (
    ("gateway", gateway_settings.PREFIX, gateway_settings.GatewaySettings),
    ("quota", quota_settings.PREFIX, quota_settings.Settings),
    ("tokenizer", tokenizer_settings.PREFIX, tokenizer_settings.Settings),
    ("router", router_settings.ENVIRONMENT_PREFIX, router_settings.Settings),
    ("decode and prefill worker", worker_settings.ENVIRONMENT_PREFIX, worker_settings.Settings),
    ("edge", edge_settings.PREFIX, edge_settings.Settings),
    ("Envoy", envoy_settings.PREFIX, envoy_settings.Settings),
    ("page of a release", page_settings.PREFIX, page_settings.Settings),
    ("TLS between services", peer_tls.PREFIX, peer_tls.Settings),
    ("local span receiver", "BATON_SPANS_", span_receiver.Settings),
)


def all_metrics() -> Iterator[MetricWrapperBase | TallyHistogram]:
    """Every metric of Baton, service by service."""
    for module in INSTRUMENTS:
        for value in vars(module).values():
            if isinstance(value, MetricWrapperBase | TallyHistogram):
                yield value


def metrics() -> Iterator[str]:
    """One line per metric: name as scraped, labels, kind and help."""
    yield "| Metric | Labels | Kind | What |"
    yield "|---|---|---|---|"
    for value in all_metrics():
        name = value._name + ("_total" if isinstance(value, Counter) else "")
        labels = ", ".join(value._labelnames)
        yield f"| `{name}` | {labels} | {value._type} | {value._documentation} |"


def settings() -> Iterator[str]:
    """One table per service: variable, type, default, meaning."""
    for service, prefix, cls in SETTINGS:
        meaning_of = meanings(cls)
        yield f"\n## {service}\n"
        yield "| Variable | Type | Default | Meaning |"
        yield "|---|---|---|---|"
        for field in dataclasses.fields(cls):
            kind = field.type if isinstance(field.type, str) else _type_name(field.type)
            missing = field.default is dataclasses.MISSING
            default = "required" if missing else _shown(field.default)
            # The markup of tables and of emphasis.
            meaning = re.sub(r"([|*])", r"\\\1", meaning_of[field.name])
            yield f"| `{prefix}{field.name.upper()}` | {kind} | {default} | {meaning} |"


def meanings(cls: type) -> dict[str, str]:
    """Each field of a settings class with the comment right above it; empty where there is none."""
    source = inspect.getsource(cls)
    lines = [line.strip() for line in source.splitlines()]
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            above = itertools.takewhile(
                lambda line: line.startswith("# "), reversed(lines[: field.lineno - 1])
            )
            found[field.target.id] = " ".join(line[2:] for line in reversed(list(above)))
    return found


def _type_name(kind: object) -> str:
    text = getattr(kind, "__name__", None) if isinstance(kind, type) else str(kind)
    text = (text or str(kind)).replace("pathlib.", "").replace("typing.", "")
    return {"tuple[str, ...]": "comma list"}.get(text, text.replace("|", "or"))


def _shown(value: object) -> str:
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    return f"`{text}`" if text else "empty"


def renewed(page: str) -> str:
    """The page with its table generated again; the table is the end of the page."""
    table = list(PAGES[page]())
    start = next(line for line in table if line.strip()).strip()
    kept, found, _ = (ROOT / page).read_text().partition(f"\n{start}\n")
    assert found, f"{page} has no line {start!r}"
    return kept + "\n" + "\n".join(table).lstrip("\n") + "\n"


PAGES = {
    "docs/telemetry.md": metrics,
    "docs/configuration.md": settings,
    "docs/api.md": api_caps.caps,
}

if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(renewed(page))
    chart_settings.renew()
