"""Every rendered object fits Kubernetes' own schemas, strictly, from 1.30 to the newest."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
from jsonschema.validators import Draft202012Validator
from kubernetes_validate.utils import all_versions
from referencing import Registry, Resource

from tests.chart.rendered import CHART, NO_SUCH_KINDS, PROFILES, Object, profile

SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
VERSIONS = sorted({one for one in all_versions() if tuple(map(int, one.split("."))) >= (1, 30)})
# Kinds of operators: their schemas are not Kubernetes'.
CUSTOM_GROUPS = {
    "cert-manager.io",
    "gateway.networking.k8s.io",
    "keda.sh",
    "monitoring.coreos.com",
}


class Schemas:
    """Of one version; the definitions are read once."""

    def __init__(self, version: str) -> None:
        self._folder = SCHEMAS / f"v{version}-local-strict"
        definitions = json.loads((self._folder / "_definitions.json").read_text())
        self._registry: Any = Registry().with_resource(
            "_definitions.json", Resource.from_contents(definitions)
        )
        self._registry = self._registry.crawl()
        self._validators: dict[str, Any] = {}

    def errors(self, found: Object) -> list[str]:
        group, _, version = found["apiVersion"].rpartition("/")
        name = "-".join(filter(None, (found["kind"].lower(), group.partition(".")[0], version)))
        if name not in self._validators:
            schema = json.loads((self._folder / f"{name}.json").read_text())
            registry = self._registry.with_resource("", Resource.from_contents(schema))
            self._validators[name] = Draft202012Validator(schema, registry=registry)
        return [
            f"{found['kind']}/{found['metadata']['name']}: {error.json_path}: {error.message[:200]}"
            for error in self._validators[name].iter_errors(found)
        ]


@cache
def distinct_objects() -> list[Object]:
    """Of all profiles, each once, without those of operators."""
    texts = {json.dumps(found, sort_keys=True) for name in PROFILES for found in profile(name)}
    objects = [json.loads(text) for text in sorted(texts)]
    return [one for one in objects if one["apiVersion"].partition("/")[0] not in CUSTOM_GROUPS]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_fit_the_strict_schemas(version: str) -> None:
    schemas = Schemas(version)
    assert [error for found in distinct_objects() for error in schemas.errors(found)] == []


def test_schemas_refuse_a_field_that_is_not_there() -> None:
    wrong = json.loads(json.dumps(profile("default")[0]))
    wrong["spec"]["podSelectr"] = {}
    assert "podSelectr" in "".join(Schemas(VERSIONS[0]).errors(wrong))


@pytest.mark.parametrize("name", PROFILES)
def test_chart_lints_without_a_word(name: str) -> None:
    # The linter knows no custom resources, so it meets the chart's refusals: of others only.
    report = helm.lint(CHART, PROFILES[name], strict=True)
    words = [m["error"] for m in report["messages"] if m["severity"] > 1]
    assert [word for word in words if NO_SUCH_KINDS not in word] == []
