"""Secrets of Kubernetes: through kubectl with its user's rights, or, from a pod, through the API
server with those of the pod's service account.

API: kubernetes.io/docs/reference/using-api/api-concepts (resource versions). A Secret is replaced
only if its version is still the one that was read.
"""

import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from baton.wire.key_registry import RegistryError

_KUBECTL_TIMEOUT_S = 60
_API_TIMEOUT_S = 10
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONFLICTS = ("modified", "AlreadyExists")


class HomeAway(RegistryError):
    """The Secrets cannot be read or written now."""


class Forbidden(HomeAway):
    """The account may not read the Secret."""


class Conflict(Exception):
    """The Secret is not what was read any more."""


class Secrets(Protocol):
    """The Secrets of a namespace, as Kubernetes writes them in JSON. Methods raise
    RegistryError."""

    def get(self, name: str) -> Any:
        """A Secret; None when there is none. Raises Forbidden."""

    def put(self, secret: Any) -> None:
        """Create a Secret, or replace the one that was read. Raises Conflict."""


def _is_new(secret: Any) -> bool:
    return "resourceVersion" not in secret["metadata"]


@dataclass(frozen=True)
class Kubectl:
    """Secrets through kubectl; without a namespace, those of its context."""

    namespace: str = ""

    def get(self, name: str) -> Any:
        text = self.run(["get", "secret", name, "-o", "json", "--ignore-not-found"])
        return msgspec.json.decode(text) if text.strip() else None

    def put(self, secret: Any) -> None:
        verb = "create" if _is_new(secret) else "replace"
        try:
            self.run([verb, "-f", "-"], msgspec.json.encode(secret))
        except RegistryError as error:
            if any(word in str(error) for word in _CONFLICTS):
                raise Conflict from error
            raise

    def run(self, arguments: Sequence[str], stdin: bytes = b"") -> bytes:
        """Run kubectl; returns what it printed. Raises RegistryError."""
        where = ["-n", self.namespace] if self.namespace else []
        try:
            done = subprocess.run(
                ["kubectl", *where, *arguments],
                input=stdin,
                capture_output=True,
                timeout=_KUBECTL_TIMEOUT_S,
                check=True,
            )
        except FileNotFoundError:
            raise RegistryError("kubectl is not installed") from None
        except subprocess.TimeoutExpired:
            raise RegistryError(f"kubectl {arguments[0]}: no answer") from None
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode(errors="replace").strip()
            raise RegistryError(f"kubectl {arguments[0]}: {reason[:300]}") from None
        return done.stdout


@dataclass(frozen=True)
class ApiServer:
    """Secrets through the API server at `url`, with the files of a service account."""

    url: str
    account: Path = _ACCOUNT

    @classmethod
    def of_pod(cls) -> "ApiServer":
        """The API server of this process's cluster. Raises RegistryError outside of one."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host:
            raise RegistryError("keys are to be in a Secret, but this is not a pod")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    def get(self, name: str) -> Any:
        try:
            return self._call("GET", f"/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code == 403:
                raise Forbidden(f"the pod's account may not read the Secret {name}") from error
            raise _refused(error) from error

    def put(self, secret: Any) -> None:
        try:
            if _is_new(secret):
                self._call("POST", "", secret)
            else:
                self._call("PUT", f"/{secret['metadata']['name']}", secret)
        except urllib.error.HTTPError as error:
            if error.code == 409:
                raise Conflict from error
            raise _refused(error) from error

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call. Raises urllib's HTTPError for a refusal, HomeAway without an answer."""
        try:
            namespace, token = (
                (self.account / name).read_text().strip() for name in ("namespace", "token")
            )
            request = urllib.request.Request(
                f"{self.url}/api/v1/namespaces/{namespace}/secrets{path}",
                data=None if body is None else msgspec.json.encode(body),
                headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
                method=method,
            )
            with self._opener().open(request, timeout=_API_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read())
        except urllib.error.HTTPError:
            raise
        except (OSError, ssl.SSLError, msgspec.MsgspecError) as error:
            raise HomeAway(f"the API server does not answer: {error}") from error

    def _opener(self) -> urllib.request.OpenerDirector:
        """Without proxies, which are for addresses outside the cluster."""
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.url.startswith("https:"):
            trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
            handlers.append(urllib.request.HTTPSHandler(context=trusted))
        return urllib.request.build_opener(*handlers)


def _refused(error: urllib.error.HTTPError) -> HomeAway:
    return HomeAway(f"the API server refused: {error.code} {error.reason}")
