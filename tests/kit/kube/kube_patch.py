"""The patches that a stub Kubernetes API server understands.

JSON merge patches (RFC 7386) are exact. Strategic merge patches are taken as merge patches in which
lists of named things are merged by name. A server-side apply replaces what its one manager says and
keeps what others said of fields that it never mentions at the top: there is no field ownership.
"""

import copy
from typing import Any

from tests.kit.kube.kube_store import KubeError, Object

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# What a server, and nobody else, writes.
_SERVER_METADATA = ("uid", "creationTimestamp", "generation", "resourceVersion")


def patched(old: Object, patch: Object, content_type: str) -> Object:
    """The object after the patch. Raises KubeError (415) for another type of patch."""
    if content_type == APPLY:
        return applied(old, patch)
    if content_type not in (MERGE, STRATEGIC):
        raise KubeError(415, "UnsupportedMediaType", f"patches of {content_type!r} are not taken")
    merged = _merged(old, patch, is_strategic=content_type == STRATEGIC)
    assert isinstance(merged, dict)
    return merged


def applied(old: Object, patch: Object) -> Object:
    """As if one manager owned every field that is not the server's."""
    new = copy.deepcopy(patch)
    for name, value in old.items():
        if name not in new and name == "status":
            new[name] = value
    metadata = new.setdefault("metadata", {})
    metadata.update({name: old["metadata"][name] for name in _SERVER_METADATA})
    return new


def _merged(old: Any, patch: Any, *, is_strategic: bool) -> Any:
    if is_strategic and _is_named(old) and _is_named(patch):
        return _merged_by_name(old, patch)
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if is_strategic and name.startswith("$"):
            continue
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(new.get(name), value, is_strategic=is_strategic)
    return new


def _is_named(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) > 0
    return is_list and all(isinstance(entry, dict) and "name" in entry for entry in value)


def _merged_by_name(old: list[Object], patch: list[Object]) -> list[Object]:
    entries = {entry["name"]: entry for entry in old}
    for entry in patch:
        if entry.get("$patch") == "delete":
            entries.pop(entry["name"], None)
        else:
            entries[entry["name"]] = _merged(entries.get(entry["name"]), entry, is_strategic=True)
    return list(entries.values())
