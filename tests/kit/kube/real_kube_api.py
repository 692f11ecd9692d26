"""A namespace of a real Kubernetes API server, with the face that tests know from the stub's.

What is under test reaches the server by a proxy, so that its connections break and its server goes
away for it alone; `store` looks and writes directly. Whatever a real server cannot be made to do on
demand, as to refuse everything with a status, is not here: tests of it take the stub alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from baton.localstack.ports import LOOPBACK
from baton.testing.fault_proxy import FaultProxy, OneUpstream
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_resources import CORE, CUSTOM
from tests.kit.kube.kube_store import Key, KubeError, Object
from tests.kit.kube.real_api_server import CLIENT, RealApiServer, kubeconfig

# Parameters of a fixture `api`: the real one only where its programs are.
API_SERVERS = ("stub", "real") if os.environ.get("KUBEBUILDER_ASSETS") else ("stub",)
# For tests of what only the stub can be made to do.
only_the_stub = pytest.mark.parametrize("api", ["stub"], indirect=True)


@contextmanager
def api_server(request: pytest.FixtureRequest) -> Iterator[KubeApi | RealKubeApi]:
    """The server that the fixture's parameter names."""
    if request.param == "stub":
        with KubeApi() as stub:
            yield stub
    else:
        with RealKubeApi(request.getfixturevalue("real_api_server")) as real:
            yield real


class RealStore:
    """What lies in the server, by key. Of what is in no namespace, tests change nothing."""

    def __init__(self, server: RealApiServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace
        self._version = 0

    @property
    def version(self) -> int:
        """Of the last change that was made here."""
        return self._version

    def get(self, key: Key) -> Object:
        """Raises KubeError (404)."""
        return self._call("GET", self._path(key))

    def find(self, key: Key) -> Object | None:
        """None when there is none."""
        try:
            return self.get(key)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def create(self, key: Key, new: Object) -> Object:
        """Raises KubeError."""
        body = {**new, "metadata": {**new.get("metadata", {}), "name": key.name}}
        return self._written(self._call("POST", self._path(key).rpartition("/")[0], body))

    def change(self, key: Key, changed: Callable[[Object], Object]) -> Object:
        """Replace an object by `changed(object)`, if it is still that one. Raises KubeError."""
        old = self.get(key)
        new = changed(old)
        same = {name: old["metadata"][name] for name in ("name", "resourceVersion")}
        body = {**new, "metadata": {**new.get("metadata", {}), **same}}
        return self._written(self._call("PUT", self._path(key), body))

    def delete(self, key: Key) -> None:
        """Raises KubeError (404)."""
        self._call("DELETE", self._path(key))
        self._version = int(self._list(key.group, key.plural)["metadata"]["resourceVersion"])

    def all_of(self, group: str, plural: str, namespace: str = "") -> tuple[list[Object], int]:
        """Objects of one resource in the namespace, and the version of that state."""
        assert namespace in ("", self._namespace)
        found = self._list(group, plural)
        return found["items"], int(found["metadata"]["resourceVersion"])

    def compact(self) -> None:
        """Forget all changes so far: the server that starts anew knows none."""
        self._server.restart()

    def _list(self, group: str, plural: str) -> Object:
        key = Key(group, plural, self._namespace, "")
        return self._call("GET", self._path(key).removesuffix("/"))

    def _path(self, key: Key) -> str:
        assert key.namespace == self._namespace
        wanted = (key.group, key.plural)
        kinds = (kind for kind in CORE + CUSTOM if (kind.group, kind.plural) == wanted)
        return f"/{next(kinds).root}/namespaces/{key.namespace}/{key.plural}/{key.name}"

    def _call(self, method: str, path: str, body: Any = None) -> Object:
        answer = self._server.http.request(method, path, json=body)
        told: Object = answer.json()
        if answer.is_error:
            raise KubeError(answer.status_code, told.get("reason", ""), told.get("message", ""))
        return told

    def _written(self, new: Object) -> Object:
        self._version = int(new["metadata"]["resourceVersion"])
        return new


class RealKubeApi:
    """A new namespace of the server; a context manager."""

    def __init__(self, server: RealApiServer) -> None:
        self._server = server
        self._proxy = FaultProxy(OneUpstream(LOOPBACK, server.port))
        self.namespace = server.new_namespace()
        self.store = RealStore(server, self.namespace)

    @property
    def url(self) -> str:
        return f"https://{self._proxy.address}"

    @property
    def requests(self) -> list[str]:
        """Those about this namespace, of what is under test."""
        about = f"/namespaces/{self.namespace}/"
        return [request for request in self._server.requests() if about in request]

    def kubeconfig(self) -> str:
        """A kubeconfig that leads here."""
        return kubeconfig(self.url, self._server.authority, CLIENT, self.namespace)

    def write_account(self, folder: Path) -> None:
        """Write the files of a service account of this namespace, as a pod has them."""
        (folder / "namespace").write_text(self.namespace)
        (folder / "token").write_text(CLIENT)
        (folder / "ca.crt").write_bytes(self._server.authority)

    def stop(self) -> None:
        """Be away: connections break, and no new ones are taken."""
        self._proxy.refuse()
        self._proxy.cut()

    def start(self) -> None:
        self._proxy.heal()

    def close_connections(self) -> None:
        """Cut every open connection, watches above all, while the server goes on."""
        self._proxy.cut()

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.__exit__(kind, error, trace)
