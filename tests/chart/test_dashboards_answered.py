"""What a real Prometheus answers to every panel, over metrics recorded from a stack under load.

`python -m tools.dashboards.look FOLDER --record tests/chart/recorded_metrics.txt.gz` made the
recording, while a decode worker was killed and a tenant ran into its limits.
"""

import gzip
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from tests import needs
from tools.dashboards.look import answers, dashboards, panels
from tools.dashboards.picture import page
from tools.dashboards.prometheus import Prometheus, running

RECORDED = Path(__file__).with_name("recorded_metrics.txt.gz")
# What did not happen meanwhile, and has no series before it happens.
SILENT = {
    "Requests that ended: refused: {{reason}}",
    "Violations: {{check}}",
    "Workers left out: {{cause}}",
    "Leases that lapsed: renewal {{state}}",
    "Calls without an answer: {{call}}",
    "Bad blocks and fallbacks: bad: {{cause}}",
    "Bad blocks and fallbacks: {{transport}} given up",
}


@contextmanager
def replayed(folder: Path) -> Iterator[tuple[Prometheus, float, float]]:
    """Prometheus over the recording, and from when to when it is."""
    text = gzip.decompress(RECORDED.read_bytes()).decode()
    (folder / "recorded.txt").write_text(text)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "recorded.txt", "data"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=200)
    times_s = [float(found) for found in re.findall(r" ([\d.]+)$", text, re.MULTILINE)]
    with running(folder, {}) as prometheus:
        yield prometheus, min(times_s), max(times_s)


@needs.prometheus
def test_every_panel_has_an_answer_and_is_drawn(tmp_path: Path) -> None:
    unanswered = set()
    with replayed(tmp_path) as (prometheus, start_s, end_s):
        for dashboard in dashboards().values():
            found = {}
            for panel in panels(dashboard):
                whole = f"{end_s - start_s + 5:.0f}s"
                found[panel["id"]] = answers(prometheus, panel, start_s, end_s, whole)
                for answer in found[panel["id"]]:
                    assert not answer.error, (panel["title"], answer.error)
                    if not answer.lines:
                        unanswered.add(f"{panel['title']}: {answer.legend}")
            drawn = page(dashboard, found, start_s, end_s)
            assert all(f">{escape(panel['title'])}</h2>" in drawn for panel in panels(dashboard))
    assert unanswered <= SILENT
