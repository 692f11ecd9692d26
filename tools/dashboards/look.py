"""The dashboards over a running stack, without Grafana: `python -m tools.dashboards.look FOLDER`.

Runs a real Prometheus beside the stack of this folder (`make up`), asks it every query of every
panel as Grafana would, reports queries that it refuses or has no answer to, and draws each
dashboard as a page. The panels show the load on the stack during that time. `--record FILE` keeps
the scraped samples, for tests/chart.
"""

import argparse
import gzip
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton.localstack.home import Home, StackState
from tools.dashboards.__main__ import FOLDER
from tools.dashboards.picture import Answer, page
from tools.dashboards.prometheus import Line, Prometheus, QueryError, running

ALERTS = FOLDER.parent / "alerts.yaml"
SCRAPE_S = 2
# The same interval as in Grafana: four scrapes.
_RATE_INTERVAL = f"{4 * SCRAPE_S}s"
_NUM_POINTS = 120
_METRIC = re.compile(r"\b(?:vllm:|baton_)\w+")
_NUM_RECORDED = 3


def substituted(query: str, rate_interval: str = _RATE_INTERVAL) -> str:
    """The query with Grafana's variables set as for all that there is."""
    every = re.sub(r"\$(?:namespace|release|model|instance)\b", ".*", query)
    return every.replace("$__rate_interval", rate_interval)


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards as Grafana imports them, by file name."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


def metrics() -> set[str]:
    """All metrics that some panel queries."""
    queries = (
        target["expr"]
        for dashboard in dashboards().values()
        for panel in panels(dashboard)
        for target in panel["targets"]
    )
    return set().union(*(_METRIC.findall(query) for query in queries))


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels with queries."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def answers(
    prometheus: Prometheus,
    panel: dict[str, Any],
    start_s: float,
    end_s: float,
    rate_interval: str = _RATE_INTERVAL,
) -> list[Answer]:
    """The answers to all queries of a panel, in their order."""
    found = []
    step_s = max((end_s - start_s) / _NUM_POINTS, 1.0)
    for target in panel["targets"]:
        answer = Answer(target["legendFormat"])
        try:
            query = substituted(target["expr"], rate_interval)
            answer.lines = prometheus.over_time(query, start_s, end_s, step_s)
        except QueryError as error:
            answer.error = str(error)
        found.append(answer)
    return found


def scrape_config(state: StackState) -> dict[str, Any]:
    """The stack's admin ports, under the names that `make status` gives them."""
    targets = [
        {
            "targets": [urlsplit(each.metrics_url).netloc],
            "labels": {"instance": each.name, "component": each.role},
        }
        for each in state.fleet().services
        if each.metrics_url
    ]
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "baton", "static_configs": targets}],
    }


def recording(lines: Sequence[Line], every_s: float) -> str:
    """Samples as OpenMetrics, thinned to one in `every_s`."""
    text = []
    for line in sorted(lines, key=lambda line: sorted(line.labels.items())):
        labels = ",".join(
            f"{name}={json.dumps(value)}"
            for name, value in sorted(line.labels.items())
            if name not in ("__name__", "job")
        )
        last_s = float("-inf")
        for at_s, value in line.points:
            if at_s - last_s >= every_s:
                text.append(f"{line.labels['__name__']}{{{labels}}} {value!r} {at_s:.3f}\n")
                last_s = at_s
    return "".join(text) + "# EOF\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.dashboards.look", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pages go")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to watch")
    parser.add_argument("--record", type=Path, help="keep the samples in this file")
    options = parser.parse_args(arguments)
    state = Home.of_environment().read_state()
    if state is None:
        print("no stack runs here: run `make up` first", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), scrape_config(state)) as prometheus,
    ):
        start_s = time.time()
        time.sleep(options.seconds)
        return report(prometheus, start_s, time.time(), options)


def report(
    prometheus: Prometheus, start_s: float, end_s: float, options: argparse.Namespace
) -> int:
    """Draws all pages and prints what is wrong; 1 if Prometheus did not take a query."""
    num_wrong = 0
    for name, dashboard in dashboards().items():
        found = {
            panel["id"]: answers(prometheus, panel, start_s, end_s) for panel in panels(dashboard)
        }
        (options.folder / f"{name}.html").write_text(page(dashboard, found, start_s, end_s))
        for panel in panels(dashboard):
            for answer in found[panel["id"]]:
                told = answer.error or ("" if answer.lines else "no answer")
                num_wrong += bool(answer.error)
                if told:
                    print(f"{dashboard['title']}: {panel['title']}: {answer.legend}: {told}")
    for rule in prometheus.rules():
        num_wrong += rule["health"] != "ok"
        print(f"{rule['name']}: {rule['state']}, {rule['health']} {rule.get('lastError', '')}")
    if options.record is not None:
        names = "|".join(sorted(metrics()))
        lines = prometheus.samples(f'{{__name__=~"{names}"}}', end_s, end_s - start_s)
        text = recording(lines, every_s=(end_s - start_s) / _NUM_RECORDED)
        options.record.write_bytes(gzip.compress(text.encode(), mtime=0))
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
