"""What of an object never changes once it is there: what a real API server refuses to a chart's
upgrades. Of the kinds that charts have; other fields are not looked at."""

from typing import Any

from tests.kit.kube.kube_store import KubeError, Object

_FIXED = {
    "Deployment": ("spec.selector",),
    "Job": ("spec.selector", "spec.template", "spec.completions"),
    "RoleBinding": ("roleRef",),
    "Secret": ("type",),
    "Service": ("spec.clusterIP",),
}
# Of these kinds' spec all is fixed but this.
_FREE = {
    "StatefulSet": {
        "replicas", "ordinals", "template", "updateStrategy", "minReadySeconds",
        "revisionHistoryLimit", "persistentVolumeClaimRetentionPolicy",
    },
    "PersistentVolumeClaim": {"resources", "volumeAttributesClassName"},
}  # fmt: skip


def check_change(old: Object, new: Object) -> None:
    """Raises KubeError (422)."""
    kind = str(old.get("kind", ""))
    changed = [path for path in _FIXED.get(kind, ()) if _at(old, path) != _at(new, path)]
    if kind in _FREE:
        before, after = old.get("spec", {}), new.get("spec", {})
        fixed = (set(before) | set(after)) - _FREE[kind]
        changed += [f"spec.{name}" for name in sorted(fixed) if before.get(name) != after.get(name)]
    if changed:
        name = old["metadata"]["name"]
        text = f'{kind} "{name}" is invalid: {", ".join(changed)}: Forbidden: field is immutable'
        raise KubeError(422, "Invalid", text)


def _at(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
