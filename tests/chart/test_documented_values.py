"""What pages tell people to type at a cluster: values that the chart takes, and its objects."""

import itertools
import re
from functools import cache
from typing import Any

import pytest
import yaml

from tests.chart.rendered import render
from tests.kit.documented import Statement, fences, statements

HELM = [each for each in statements() if re.search(r"^helm (install|upgrade)", each.text)]
AT_CLUSTER = [each for each in statements() if "it needs a cluster" in each.why_not_run]
VALUES = [
    text for page, language, text in fences() if language == "yaml" and text.startswith("models:")
]
# Made by the person that installs, and files.
OTHERS = {"baton-admin"}


def set_values(words: tuple[str, ...]) -> dict[str, Any]:
    """What `--set` and `--set-string` of a command say."""
    values: dict[str, Any] = {}
    for option, text in itertools.pairwise(words):
        if option not in ("--set", "--set-string"):
            continue
        for pair in re.split(r"(?<!\\),", text):
            path, value = pair.split("=", 1)
            *parents, last = path.split(".")
            owner = values
            for name in parents:
                owner = owner.setdefault(name, {})
            value = value.replace("\\,", ",")
            owner[last] = value if option == "--set-string" else yaml.safe_load(value)
    return values


@cache
def names() -> set[str]:
    """Objects of a release with all that pages speak of, and the pods of its StatefulSets."""
    objects = render(
        {
            "quota": {"adminApi": {"existingSecret": "baton-admin"}},
            "loadtest": {"enabled": True},
            "page": {"enabled": True},
        }
    )
    found = {each["metadata"]["name"] for each in objects}
    pods = {
        f"{each['metadata']['name']}-{i}"
        for each in objects
        if each["kind"] == "StatefulSet"
        for i in range(each["spec"]["replicas"])
    }
    return found | pods


@pytest.mark.parametrize("statement", HELM, ids=lambda each: f"{each.page}: {each.text[:60]}")
def test_the_chart_takes_the_values_of_a_documented_command(statement: Statement) -> None:
    assert render(set_values(statement.words))


@pytest.mark.parametrize("text", VALUES)
def test_the_chart_takes_documented_values(text: str) -> None:
    assert render(yaml.safe_load(text))


def test_objects_of_documented_commands_are_made() -> None:
    typed = "\n".join(each.text for each in AT_CLUSTER if not each.text.startswith("baton "))
    named = set(re.findall(r"(?<![\w/.-])baton-[a-z]+(?:-\d)?(?![\w.-])", typed))
    named |= set(re.findall(r"svc/(baton-\w+)", typed))
    assert len(named) > 5
    assert named - names() <= OTHERS
