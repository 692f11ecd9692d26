"""Writes the Grafana dashboards: `python -m tools.dashboards`. The files are committed."""

from pathlib import Path

from tools.dashboards.boards import DASHBOARDS
from tools.dashboards.grafana import text
from tools.dashboards.panels import Dashboard

FOLDER = Path(__file__).parents[2] / "deploy" / "helm" / "baton" / "files" / "dashboards"


def file_of(dashboard: Dashboard) -> Path:
    """The file of a dashboard, which both Helm and compose read."""
    return FOLDER / f"{dashboard.uid.removeprefix('baton-')}.json"


if __name__ == "__main__":
    for each in DASHBOARDS:
        file_of(each).write_text(text(each))
