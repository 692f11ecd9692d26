"""A case of an alert as promtool's rule tests have it, beside releases that are well."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy" / "helm" / "baton" / "files" / "alerts.yaml"
GROUPS = yaml.safe_load(ALERTS.read_text())["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
# The release that a case is about; another namespace's, and another one of the same namespace.
OURS = {"namespace": "prod", "release": "baton"}
OTHERS = ({"namespace": "staging", "release": "baton"}, {"namespace": "prod", "release": "canary"})
# The series' values, from the start on: promtool's notation, `_xN` is N times nothing.
Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """`fires`: by the labels of what must fire at `at`, besides the severity, its summary."""

    what: str
    series: Series
    at: str
    fires: tuple[tuple[dict[str, str], str], ...] = ()


def placed(series: Series, place: dict[str, str]) -> Iterator[dict[str, str]]:
    """The series of a release."""
    labels = ",".join(f'{name}="{value}"' for name, value in place.items())
    for name, values in series.items():
        metric, _, own = name.partition("{")
        yield {"series": f"{metric}{{{labels},{own or '}'}", "values": values}


def rule_test(name: str, case: Case, others: Series, every: str) -> dict[str, Any]:
    """What promtool is to check. Annotations without a figure are as the rule has them."""
    rule = RULES[name]
    fixed = {key: rule["annotations"][key] for key in ("description", "runbook_url")}
    return {
        "name": case.what,
        "interval": every,
        "input_series": [
            *placed(case.series, OURS),
            *(one for place in OTHERS for one in placed(others, place)),
        ],
        "alert_rule_test": [
            {
                "alertname": name,
                "eval_time": case.at,
                "exp_alerts": [
                    {
                        "exp_labels": {**OURS, **labels, **rule["labels"]},
                        "exp_annotations": {"summary": summary, **fixed},
                    }
                    for labels, summary in case.fires
                ],
            }
        ],
    }


def read_rules(name: str) -> list[dict[str, Any]]:
    """The alert and the records that it reads. promtool works out every rule of a file at every
    moment of every case: with all of them, the tests took three to five times as long."""
    expression = RULES[name]["expr"]
    every_rule = (rule for group in GROUPS for rule in group["rules"])
    records = [rule for rule in every_rule if "record" in rule and rule["record"] in expression]
    return [*records, RULES[name]]


def check(name: str, cases: list[Case], folder: Path, every: str) -> None:
    """Each case alone, and each that fires also beside releases that do not."""
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "baton", "rules": read_rules(name)}]}))
    *_, well = (case for case in cases if not case.fires)
    alone = [rule_test(name, case, {}, every) for case in cases]
    beside = [rule_test(name, case, well.series, every) for case in cases if case.fires]
    tests = {
        "rule_files": [str(rules)],
        "evaluation_interval": every,
        "tests": [*alone, *beside],
    }
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump(tests))
    ran = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def reasons(text: str) -> list[set[str]]:
    """The failure reasons of each selector that names any."""
    return [set(found.split("|")) for found in re.findall(r'reason=~"([^"]*)"', text)]
