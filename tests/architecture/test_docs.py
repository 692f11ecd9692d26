"""What people are told is there: metrics, log lines, errors, settings, alerts and links of the
pages exist in the code, and the code's are on the pages."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from prometheus_client import Counter

from baton.wire.failures import REASONS
from tests.architecture.pages import anchors, links
from tools import reference_tables

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
PAGES = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "services/*/*.md",
        "loadtest/*.md",
        "deploy/**/*.md",
        "baton/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
]
# Read by processes that have no settings class, or by what starts them.
OTHER_VARIABLES = {
    "BATON_HOME", "BATON_PORT", "BATON_LOG_LEVEL", "BATON_REGISTRY", "BATON_TAG",
    "BATON_APT", "BATON_TEST_LONG", "BATON_CHAOS_EACH", "BATON_SIM_SEED",
    "BATON_JAEGER", "BATON_OTLP_HEADERS_FILE", "BATON_BENCH_CACHE", "BATON_BENCH_PEERS",
    "BATON_VLLM_PYTHON", "BATON_CPU_ISA",
}  # fmt: skip


def section(page: str, heading: str) -> str:
    """From a heading to the next one of its level."""
    level = heading.split()[0]
    start = page.index(f"\n{heading}\n") + 1
    end = page.find(f"\n{level} ", start)
    return page[start : end if end > 0 else None]


# Of ASGI, beside the names of attributes.
KEYS_OF_SCOPES = {"baton.abort", "baton.has_left", "baton.headers", "baton.writer"}


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without head and rule."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def sources() -> str:
    folders = (ROOT / "baton", ROOT / "services")
    return "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))


def metrics() -> set[str]:
    """As they are scraped."""
    return {
        value._name + ("_total" if isinstance(value, Counter) else "")
        for value in reference_tables.all_metrics()
    }


def test_operations_say_of_every_metric_what_is_normal() -> None:
    by_question = section(OPERATIONS, "## Metrics, by question")
    told = {name for row in rows(by_question) for name in re.findall(r"[\w:]+", row[0])}
    assert not metrics() - told


def test_operations_name_no_metric_that_is_not_exported() -> None:
    named = set(re.findall(r"\b(?:vllm:|baton_|gen_ai_)\w+", OPERATIONS))
    assert not named - metrics()


def test_every_error_line_is_explained_and_every_explained_line_is_written() -> None:
    written = sources()
    errors, warnings = section(OPERATIONS, "## Log lines").split("Warnings that")
    explained = {event for row in rows(errors) for event in code(row[0])}
    assert explained == set(re.findall(r'_log\.(?:error|exception|bug)\(\s*"(\w+)"', written))
    counted = {event for row in rows(warnings) for event in code(row[0])}
    assert not counted - set(re.findall(r'_log\.(?:info|warning)\(\s*"(\w+)"', written))


def test_every_error_of_the_api_is_explained_with_its_status() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    told: dict[str, int] = {}
    for codes, statuses, *_ in rows(section(page, "## Errors")):
        each = [int(status) for status in statuses.split(", ")]
        names = code(codes)
        told |= dict(zip(names, each if len(each) > 1 else each * len(names), strict=True))
    assert told == {reason: row.http_status for reason, row in REASONS.items()}


def test_every_alert_has_its_section_and_no_other() -> None:
    file = ROOT / "deploy" / "helm" / "baton" / "files" / "alerts.yaml"
    groups = yaml.safe_load(file.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert set(re.findall(r"^### (\w+)$", section(OPERATIONS, "## Alerts"), re.M)) == alerts


def test_every_attribute_of_a_span_is_explained_under_its_one_name() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text()
    named = set(re.findall(r'"(baton\.[a-z_]+(?:\.[a-z_]+)*)"', sources()))
    modules = {name for name in named if list(ROOT.glob(f"{name.replace('.', '/')}*"))}
    told = set(re.findall(r"`(baton\.[a-z_.]+)`", page))
    assert named - modules - KEYS_OF_SCOPES == told


def test_every_setting_that_a_page_names_exists() -> None:
    known = OTHER_VARIABLES | {
        prefix + field.name.upper()
        for _, prefix, settings in reference_tables.SETTINGS
        for field in fields(settings)
    }
    for page in PAGES:
        named = set(re.findall(r"\bBATON_[A-Z][A-Z_]*[A-Z]\b(?!_)", page.read_text()))
        assert not named - known, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text()), target


def test_the_site_leads_to_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    folders = {f"{name}/" for name in re.findall(r": ([\w-]+)/$", nav, re.MULTILINE)}
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).as_posix()
        assert f": {name}\n" in nav or f"{name.partition('/')[0]}/" in folders, name
