"""A stub Kubernetes API server: real HTTP, real clients, no cluster behind it.

Serves discovery, OpenAPI, create, read, list, replace, patch, delete and watch for the kinds of
`kube_resources`. Changes of what never changes are refused (`kube_immutable`); beyond that it does
not validate, default, admit, authorise, schedule or run anything: a test with it shows that a
client speaks the API, not that a cluster accepts what it says. Bodies are JSON only. `react` stands
for controllers: it sees each created object and may complete it.
"""

import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.kit.kube import kube_resources as resources
from tests.kit.kube.kube_immutable import check_change
from tests.kit.kube.kube_patch import APPLY, applied, patched
from tests.kit.kube.kube_resources import CORE, CUSTOM, Resource
from tests.kit.kube.kube_selectors import field_selector, label_selector
from tests.kit.kube.kube_store import Key, KubeError, KubeStore, Object
from tests.kit.kube.kube_watch import WatchRequest, status_document, write_events

# A connection that says nothing for this long is closed.
_IDLE_S = 60.0
_SUBRESOURCES = ("status", "scale", "log")


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names: a resource, perhaps in a namespace, perhaps one object of it."""

    resource: Resource
    namespace: str
    name: str
    subresource: str

    @property
    def key(self) -> Key:
        return Key(self.resource.group, self.resource.plural, self.namespace, self.name)


class KubeApi:
    """The server, on a free port of 127.0.0.1; a context manager.

    `store` is what it holds; tests read it, and write what kubelets and controllers would.
    `refuse_with` makes every request fail with that HTTP status while it is set. Tests that take a
    real server as well (`real_kube_api`) keep to `namespace`.
    """

    namespace = "default"

    def __init__(
        self,
        kinds: Sequence[Resource] = CORE + CUSTOM,
        *,
        react: Callable[[Object], Object] = lambda created: created,
        port: int = 0,
    ) -> None:
        self.kinds = kinds
        self.store = KubeStore()
        self.react = react
        self.refuse_with = 0
        self.requests: list[str] = []
        self.stopping = threading.Event()
        self._port = port
        self._server: _Server | None = None
        for namespace in ("default", "kube-system"):
            self.store.create(Key("", "namespaces", "", namespace), _namespace(namespace))

    @property
    def port(self) -> int:
        """The same over `stop` and `start`."""
        return self._port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self) -> str:
        """A kubeconfig (JSON is YAML) that leads here."""
        context = {"cluster": "stub", "user": "stub", "namespace": self.namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "clusters": [{"name": "stub", "cluster": {"server": self.url}}],
            "users": [{"name": "stub", "user": {}}],
            "contexts": [{"name": "stub", "context": context}],
        }
        return json.dumps(config)

    def write_account(self, folder: Path) -> None:
        """Write the files of a service account of `namespace`, as a pod has them."""
        (folder / "namespace").write_text(self.namespace)
        (folder / "token").write_text("stub")

    def start(self) -> None:
        """Serve; again after `stop`, on the same port with the same objects."""
        assert self._server is None, "it runs"
        self.stopping.clear()
        self._server = _Server(self._port, self)
        self._port = self._server.server_address[1]
        # Polling for a stop request more often than the default keeps tests quick.
        serve = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="kube-api", daemon=True
        )
        serve.start()

    def stop(self) -> None:
        """Close the port and all connections; the objects stay."""
        server, self._server = self._server, None
        if server is None:
            return
        self.stopping.set()
        self.store.wake()
        server.shutdown()
        server.close_connections()
        server.server_close()

    def close_connections(self) -> None:
        """Cut every open connection, watches above all, while the server goes on."""
        if self._server is not None:
            self._server.close_connections()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def target(self, path: str) -> Target | None:
        """What the path names; None when it is no resource's."""
        parts = path.strip("/").split("/")
        for resource in self.kinds:
            root = resource.root.split("/")
            if parts[: len(root)] != root:
                continue
            rest = parts[len(root) :]
            namespace = ""
            if resource.is_namespaced and len(rest) >= 3 and rest[0] == "namespaces":
                namespace, rest = rest[1], rest[2:]
            name, subresource = [*rest[1:3], "", ""][:2]
            is_known = subresource in ("", *_SUBRESOURCES) and len(rest) <= 3
            if rest and rest[0] == resource.plural and is_known:
                return Target(resource, namespace, name, subresource)
        return None

    def document(self, path: str) -> Any:
        """Discovery and OpenAPI; None for other paths."""
        parts = path.strip("/")
        if parts == "version":
            return resources.version_document()
        if parts == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if parts == "apis":
            return resources.group_list(self.kinds)
        if parts == "openapi/v3":
            return resources.openapi_index(self.kinds)
        is_openapi = parts.startswith("openapi/v3/")
        root = parts.removeprefix("openapi/v3/")
        kinds = [resource for resource in self.kinds if resource.root == root]
        if not kinds:
            return None
        if is_openapi:
            return resources.openapi_document(kinds)
        return resources.resource_list(kinds[0].api_version, kinds)


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, api: KubeApi) -> None:
        self.api = api
        self._open: set[Any] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            try:
                connection.shutdown(2)
            except OSError:
                pass  # closed in the meantime

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no event; anything else is a bug and shows."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    # Header and body are two writes; without this each answer waits for a delayed ACK.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_POST(self) -> None:
        self._handle(self._create)

    def do_PUT(self) -> None:
        self._handle(self._replace)

    def do_PATCH(self) -> None:
        self._handle(self._patch)

    def do_DELETE(self) -> None:
        self._handle(self._delete)

    def log_message(self, format: str, *args: object) -> None:
        """`KubeApi.requests` is the log."""

    def _handle(self, method: Callable[[Target], None]) -> None:
        api = self.server.api
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        api.requests.append(f"{self.command} {self.path}")
        try:
            if api.refuse_with:
                text = "the server is currently unable to handle the request"
                raise KubeError(api.refuse_with, "ServiceUnavailable", text)
            document = api.document(url.path) if self.command == "GET" else None
            if document is not None:
                self._answer(200, document)
                return
            target = api.target(url.path)
            if target is None:
                raise KubeError(404, "NotFound", "the server could not find the requested resource")
            method(target)
        except KubeError as error:
            self._answer(error.status, status_document(error))

    def _get(self, target: Target) -> None:
        if target.subresource == "log":
            self._answer_text(200, "text/plain", b"")
        elif target.name:
            self._answer(200, self.server.api.store.get(target.key))
        elif self.query.get("watch") in ("1", "true"):
            self._watch(target)
        else:
            self._list(target)

    def _list(self, target: Target) -> None:
        resource = target.resource
        items, version = self.server.api.store.all_of(
            resource.group, resource.plural, target.namespace
        )
        matches = self._selected()
        body = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version)},
            "items": [item for item in items if matches(item)],
        }
        self._answer(200, body)

    def _selected(self) -> Callable[[Object], bool]:
        by_label = label_selector(self.query.get("labelSelector", ""))
        by_field = field_selector(self.query.get("fieldSelector", ""))
        return lambda found: by_label(found) and by_field(found)

    def _watch(self, target: Target) -> None:
        api = self.server.api
        request = WatchRequest.parsed(target.resource, target.namespace, self.query)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        write_events(api.store, request, self._selected(), self._write_chunk, api.stopping)
        self.wfile.write(b"0\r\n\r\n")

    def _write_chunk(self, event: Object) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _create(self, target: Target) -> None:
        store = self.server.api.store
        new = self._object()
        metadata = new.setdefault("metadata", {})
        name = metadata.get("name") or f"{metadata.get('generateName', '')}{store.version}"
        if target.namespace:
            store.get(Key("", "namespaces", "", target.namespace))
        key = Key(target.resource.group, target.resource.plural, target.namespace, name)
        if "dryRun" in self.query:
            self._answer(201, {**new, "metadata": {**metadata, "name": name}})
        else:
            self._answer(201, store.create(key, self.server.api.react(new)))

    def _replace(self, target: Target) -> None:
        new = self._object()
        self._change(target, lambda old: _with_subresource(old, new, target.subresource))

    def _patch(self, target: Target) -> None:
        patch = self._object()
        content_type = self.headers.get("Content-Type", "").partition(";")[0]
        api = self.server.api
        if content_type == APPLY and api.store.find(target.key) is None:
            patch.setdefault("metadata", {})["name"] = target.name
            if "dryRun" in self.query:
                self._answer(201, patch)
            else:
                self._answer(201, api.store.create(target.key, api.react(patch)))
            return
        self._change(target, lambda old: patched(old, patch, content_type))

    def _change(self, target: Target, changed: Callable[[Object], Object]) -> None:
        def checked(old: Object) -> Object:
            new = changed(old)
            check_change(old, new)
            return new

        store = self.server.api.store
        if "dryRun" in self.query:
            self._answer(200, checked(store.get(target.key)))
        else:
            self._answer(200, store.change(target.key, checked))

    def _delete(self, target: Target) -> None:
        store = self.server.api.store
        if not target.name:
            raise KubeError(405, "MethodNotAllowed", "collections are not deleted here")
        gone = store.get(target.key) if "dryRun" in self.query else store.delete(target.key)
        self._answer(200, gone)

    def _object(self) -> Object:
        try:
            value = json.loads(self.body)
        except ValueError:
            text = "this server takes JSON only"
            raise KubeError(415, "UnsupportedMediaType", text) from None
        if not isinstance(value, dict):
            raise KubeError(400, "BadRequest", "the body is not an object")
        return value

    def _answer(self, status: int, body: Any) -> None:
        self._answer_text(status, "application/json", json.dumps(body).encode())

    def _answer_text(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _with_subresource(old: Object, new: Object, subresource: str) -> Object:
    """A replaced object; of a subresource (status) only that part."""
    if subresource:
        return {**old, subresource: new.get(subresource, {})}
    return applied(old, new) if "resourceVersion" not in new.get("metadata", {}) else new
