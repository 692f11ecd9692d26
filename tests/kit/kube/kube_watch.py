"""The watch of a stub Kubernetes API server: what one watch request is told, in which order.

As the real one: without a version (or with 0) it begins with ADDED for all that exists, else with
what changed since; BOOKMARK events tell the version without an object, once something has changed
since the watch began (a real server has earlier ones if its etcd tells progress); a version that is
forgotten is one ERROR event with status 410; after `timeoutSeconds` the stream ends.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.kit.kube.kube_resources import Resource
from tests.kit.kube.kube_store import Change, KubeError, KubeStore, Object

# The real server's bookmarks come about once a minute.
BOOKMARK_INTERVAL_S = 1.0
DEFAULT_TIMEOUT_S = 1800.0
_TRUE = ("1", "true")


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What to watch, and from where on."""

    resource: Resource
    namespace: str
    # 0 = all that exists first.
    version: int
    wants_bookmarks: bool
    # All that exists first, then a bookmark that says so (KEP-3157).
    wants_initial_events: bool
    timeout_s: float

    @classmethod
    def parsed(cls, resource: Resource, namespace: str, query: Mapping[str, str]) -> "WatchRequest":
        """Raises KubeError (400)."""
        version = query.get("resourceVersion") or "0"
        if not version.isdigit():
            raise KubeError(400, "BadRequest", f"resourceVersion {version!r} is no number")
        return cls(
            resource,
            namespace,
            int(version),
            wants_bookmarks=query.get("allowWatchBookmarks") in _TRUE,
            wants_initial_events=query.get("sendInitialEvents") in _TRUE,
            timeout_s=float(query.get("timeoutSeconds") or DEFAULT_TIMEOUT_S),
        )

    def covers(self, change: Change) -> bool:
        resource, key = self.resource, change.key
        is_same = (key.group, key.plural) == (resource.group, resource.plural)
        return is_same and self.namespace in ("", key.namespace)


def write_events(
    store: KubeStore,
    request: WatchRequest,
    matches: Callable[[Object], bool],
    write: Callable[[Object], None],
    stopping: threading.Event,
) -> None:
    """Write events until the request's time is over or the server stops. Blocks."""
    version = request.version
    if version == 0 or request.wants_initial_events:
        version = _write_existing(store, request, matches, write)
    began = store.version
    ends_at = time.monotonic() + request.timeout_s
    while not stopping.is_set() and (left_s := ends_at - time.monotonic()) > 0:
        try:
            changes = store.changes_after(version, min(left_s, BOOKMARK_INTERVAL_S))
        except KubeError as error:
            write({"type": "ERROR", "object": status_document(error)})
            return
        for change in changes:
            version = change.version
            if request.covers(change) and matches(change.object):
                write({"type": change.type, "object": change.object})
        if not changes and request.wants_bookmarks and version > began:
            write({"type": "BOOKMARK", "object": _bookmark(request.resource, version)})


def _write_existing(
    store: KubeStore,
    request: WatchRequest,
    matches: Callable[[Object], bool],
    write: Callable[[Object], None],
) -> int:
    resource = request.resource
    items, version = store.all_of(resource.group, resource.plural, request.namespace)
    for item in filter(matches, items):
        write({"type": "ADDED", "object": item})
    if request.wants_initial_events:
        end = _bookmark(resource, version)
        end["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
        write({"type": "BOOKMARK", "object": end})
    return version


def _bookmark(resource: Resource, version: int) -> dict[str, Any]:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}


def status_document(error: KubeError) -> dict[str, Any]:
    """What Kubernetes says instead of an object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": error.reason,
        "code": error.status,
    }
