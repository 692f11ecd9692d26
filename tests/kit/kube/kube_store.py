"""What a stub Kubernetes API server holds: objects, their versions, and the recent changes.

Knows no HTTP (`kube_api`) and no kinds: it neither validates nor defaults, and no controller acts
on what lies here. One counter numbers all changes, as etcd's revision does; changes that are
forgotten (`compact`) make a watch that begins before them end with 410, as a real server's do.
"""

import copy
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
MAX_EVENTS = 10_000


class KubeError(Exception):
    """A refusal: HTTP status, Kubernetes' reason, message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Key:
    """Where an object is; `group` is empty for the core, `namespace` for what has none."""

    group: str
    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log: ADDED, MODIFIED or DELETED, and the object as it was then."""

    version: int
    type: str
    key: Key
    object: Object


class KubeStore:
    """All objects. Thread-safe; everything handed out is a copy."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._objects: dict[Key, Object] = {}
        self._log: deque[Change] = deque()
        self._version = 1
        self._forgotten = 0

    @property
    def version(self) -> int:
        """Of the last change."""
        with self._changed:
            return self._version

    def get(self, key: Key) -> Object:
        """Raises KubeError (404)."""
        with self._changed:
            return copy.deepcopy(self._existing(key))

    def find(self, key: Key) -> Object | None:
        """None when there is none."""
        with self._changed:
            return copy.deepcopy(self._objects.get(key))

    def all_of(self, group: str, plural: str, namespace: str = "") -> tuple[list[Object], int]:
        """Objects of one resource by namespace and name, and the version of that state.

        Without `namespace`: of all namespaces.
        """
        with self._changed:
            keys = sorted(
                (key for key in self._objects if (key.group, key.plural) == (group, plural)),
                key=lambda key: (key.namespace, key.name),
            )
            items = [self._objects[key] for key in keys if namespace in ("", key.namespace)]
            return copy.deepcopy(items), self._version

    def all_keys(self) -> list[Key]:
        """Of all objects."""
        with self._changed:
            return list(self._objects)

    def create(self, key: Key, new: Object) -> Object:
        """Raises KubeError (409) when it exists."""
        with self._changed:
            if key in self._objects:
                text = f'{key.plural} "{key.name}" already exists'
                raise KubeError(409, "AlreadyExists", text)
            stored = copy.deepcopy(new)
            metadata = stored.setdefault("metadata", {})
            metadata.update(name=key.name, uid=str(uuid.uuid4()), generation=1)
            metadata["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            if key.namespace:
                metadata["namespace"] = key.namespace
            return self._commit("ADDED", key, stored)

    def change(self, key: Key, changed: Callable[[Object], Object]) -> Object:
        """Replace an object by `changed(object)`. Raises KubeError: 404, or 409 when the new one
        names another version than the present."""
        with self._changed:
            old = self._existing(key)
            stored = copy.deepcopy(changed(copy.deepcopy(old)))
            metadata = stored.setdefault("metadata", {})
            expected = metadata.get("resourceVersion")
            if expected and expected != old["metadata"]["resourceVersion"]:
                text = f'{key.plural} "{key.name}": the object has been modified'
                raise KubeError(409, "Conflict", text)
            for name in ("name", "namespace", "uid", "creationTimestamp", "generation"):
                if name in old["metadata"]:
                    metadata[name] = old["metadata"][name]
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
            if stored == old:
                return stored
            if stored.get("spec") != old.get("spec"):
                metadata["generation"] += 1
            return self._commit("MODIFIED", key, stored)

    def delete(self, key: Key) -> Object:
        """What it was. Raises KubeError (404)."""
        with self._changed:
            return self._commit("DELETED", key, self._existing(key))

    def changes_after(self, version: int, timeout_s: float) -> list[Change]:
        """The changes after `version`; waits up to `timeout_s` for one, else empty.

        Raises KubeError (410) when some of them are forgotten.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, timeout_s)
            if version < self._forgotten:
                text = f"too old resource version: {version} ({self._forgotten})"
                raise KubeError(410, "Expired", text)
            return copy.deepcopy([change for change in self._log if change.version > version])

    def compact(self) -> None:
        """Forget all changes so far."""
        with self._changed:
            self._forgotten = self._version
            self._log.clear()

    def wake(self) -> None:
        """Let everyone who waits in `changes_after` look again."""
        with self._changed:
            self._changed.notify_all()

    def _existing(self, key: Key) -> Object:
        if key not in self._objects:
            raise KubeError(404, "NotFound", f'{key.plural} "{key.name}" not found')
        return self._objects[key]

    def _commit(self, type_: str, key: Key, new: Object) -> Object:
        self._version += 1
        stored = copy.deepcopy(new)
        stored["metadata"]["resourceVersion"] = str(self._version)
        if type_ == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = stored
        self._log.append(Change(self._version, type_, key, copy.deepcopy(stored)))
        while len(self._log) > MAX_EVENTS:
            self._forgotten = self._log.popleft().version
        self._changed.notify_all()
        return copy.deepcopy(stored)
