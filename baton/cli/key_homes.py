"""Where API keys are kept: the registry is the truth, and Redis gets what changes at once.

On one machine the registry is a file of the stack's folder. With the Helm chart it is the Secret
`<name>-keys`, which `kubectl` reads and writes; the quota pods mount it.
"""

import base64
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from baton.localstack.home import Home
from baton.wire import key_registry
from baton.wire.key_registry import Entries, Line, Record, RegistryError

_FILE = "registry.jsonl"
# Kubernetes takes Secrets of 1 MiB, with their metadata.
_MAX_BYTES = 1_000_000
_TIMEOUT_S = 60


class KeyHome(Protocol):
    """A registry of keys. Each method raises RegistryError."""

    def server_secret(self) -> bytes:
        """The secret that digests are made with."""

    def read(self) -> Entries:
        """All keys, revoked ones included, and the limits of tenants and organisations."""

    def append(self, entry: Line) -> None:
        """Write a line down, durably."""

    def publish(self, record: Record) -> None:
        """Give a running Redis the state of a key, or the limits of an owner."""


@dataclass(frozen=True)
class LocalKeys:
    """The registry of a stack on this machine."""

    home: Home

    def server_secret(self) -> bytes:
        return key_registry.ensure_secret(self.home.secret)

    def read(self) -> Entries:
        return key_registry.read(self.home.registry)

    def append(self, entry: Line) -> None:
        key_registry.append(self.home.registry, entry)

    def publish(self, record: Record) -> None:
        """Without a running stack, the quota service loads the file at its start."""
        state = self.home.read_state()
        if state is None:
            return
        import redis

        url = str(state.services["redis"]["endpoint"])
        try:
            with redis.Redis.from_url(url, socket_timeout=5) as client:
                for command in key_registry.redis_commands(record):
                    client.execute_command(*command)
        except redis.RedisError as error:
            raise RegistryError(f"recorded, but Redis at {url} did not take it: {error}") from error


@dataclass(frozen=True)
class ClusterKeys:
    """The registry of a release of the chart; the names of its objects begin with `name`."""

    name: str
    namespace: str = ""

    def server_secret(self) -> bytes:
        secret = self._secret(f"{self.name}-auth")
        if secret is None:
            raise RegistryError(f"there is no Secret {self.name}-auth: is --release right?")
        return key_registry.parse_secret(_data(secret, "server-secret").decode(), "server-secret")

    def read(self) -> Entries:
        secret = self._secret(f"{self.name}-keys")
        return key_registry.parse(_data(secret, _FILE), f"{self.name}-keys")

    def append(self, entry: Line) -> None:
        """Write the Secret as it was read: if another one changed it meanwhile, kubectl refuses."""
        name = f"{self.name}-keys"
        secret = self._secret(name)
        data = _data(secret, _FILE) + key_registry.encode(entry)
        if len(data) > _MAX_BYTES:
            raise RegistryError(f"the Secret {name} is full: {len(data)} bytes")
        fresh = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        manifest = dict(secret or fresh) | {"data": {_FILE: base64.b64encode(data).decode()}}
        verb = "replace" if secret else "create"
        self._kubectl([verb, "-f", "-"], msgspec.json.encode(manifest))

    def publish(self, record: Record) -> None:
        pod = f"{self.name}-quota-0"
        load = ["exec", "-i", pod, "--", "python", "-m", "services.quota.keys", "load"]
        try:
            self._kubectl(load, key_registry.encode(record))
        except RegistryError as error:
            raise RegistryError(
                f"recorded; counts when the pods see the Secret, in a minute or two: {error}"
            ) from error

    def _secret(self, name: str) -> Any:
        text = self._kubectl(["get", "secret", name, "-o", "json", "--ignore-not-found"])
        return msgspec.json.decode(text) if text.strip() else None

    def _kubectl(self, arguments: Sequence[str], stdin: bytes = b"") -> bytes:
        where = ["-n", self.namespace] if self.namespace else []
        try:
            done = subprocess.run(
                ["kubectl", *where, *arguments],
                input=stdin,
                capture_output=True,
                timeout=_TIMEOUT_S,
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


def _data(secret: Any, key: str) -> bytes:
    """A value of a Secret; empty without the Secret or the value."""
    return base64.b64decode(((secret or {}).get("data") or {}).get(key, ""))
