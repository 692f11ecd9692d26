"""Label and field selectors, as far as clients of the stub Kubernetes API server use them."""

from collections.abc import Callable
from typing import Any

from tests.kit.kube.kube_store import KubeError

Matches = Callable[[dict[str, Any]], bool]


def label_selector(text: str) -> Matches:
    """`a=b`, `a!=b`, `a`, `!a`, joined by commas. Raises KubeError (400) for set expressions."""
    if "(" in text:
        raise KubeError(400, "BadRequest", f"set expressions are not taken: {text}")
    terms = [_label_term(term.strip()) for term in text.split(",") if term.strip()]

    def matches(found: dict[str, Any]) -> bool:
        labels = found.get("metadata", {}).get("labels") or {}
        return all(term(labels) for term in terms)

    return matches


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    if "!=" in term:
        name, _, value = term.partition("!=")
        return lambda labels: labels.get(name.strip()) != value.strip()
    if "=" in term:
        name, _, value = term.replace("==", "=").partition("=")
        return lambda labels: labels.get(name.strip()) == value.strip()
    if term.startswith("!"):
        return lambda labels: term[1:].strip() not in labels
    return lambda labels: term in labels


def field_selector(text: str) -> Matches:
    """`metadata.name=x` and the like. Raises KubeError (400) for anything but equality."""
    terms: list[tuple[list[str], str]] = []
    for term in filter(None, text.split(",")):
        path, is_equal, value = term.partition("=")
        if not is_equal or path.endswith("!"):
            raise KubeError(400, "BadRequest", f"only = is taken in a field selector: {term}")
        terms.append((path.strip().split("."), value.removeprefix("=").strip()))

    def matches(found: dict[str, Any]) -> bool:
        return all(str(_at(found, path)) == value for path, value in terms)

    return matches


def _at(found: Any, path: list[str]) -> Any:
    for name in path:
        found = found.get(name, "") if isinstance(found, dict) else ""
    return found
