"""The keys of a stack on this machine, and of a release of the Helm chart: their durable home, and
how Redis gets what changes at once.

On one machine the registry is a file of the stack's folder. With the Helm chart it is the Secret
`<name>-keys`, which `kubectl` reads and writes; the quota pods mount it.
"""

import asyncio
import base64
from dataclasses import dataclass
from typing import Protocol

from baton.keys.homes import FileHome, RegistryHome, SecretHome
from baton.keys.redis_copy import publish
from baton.keys.secrets import Kubectl
from baton.localstack.home import Home
from baton.wire import key_registry
from baton.wire.key_registry import Record, RegistryError


class Keys(Protocol):
    """The keys of a deployment. Each method raises RegistryError."""

    @property
    def home(self) -> RegistryHome:
        """Where they are kept."""

    def server_secret(self) -> bytes:
        """The secret that digests are made with."""

    def publish(self, record: Record) -> None:
        """Give a running Redis the state of a key, or the limits of an owner."""


@dataclass(frozen=True)
class LocalKeys:
    """The keys of a stack on this machine."""

    stack: Home

    @property
    def home(self) -> FileHome:
        return FileHome(self.stack.registry)

    def server_secret(self) -> bytes:
        return key_registry.ensure_secret(self.stack.secret)

    def publish(self, record: Record) -> None:
        """Without a running stack, the quota service loads the file at its start."""
        state = self.stack.read_state()
        if state is None:
            return
        from redis.exceptions import RedisError

        url = str(state.services["redis"]["endpoint"])
        try:
            asyncio.run(_publish(url, record))
        except RedisError as error:
            raise RegistryError(f"recorded, but Redis at {url} did not take it: {error}") from error


async def _publish(url: str, record: Record) -> None:
    from redis.asyncio import Redis

    async with Redis.from_url(url, socket_timeout=5) as client:
        await publish(client.execute_command, [record])


@dataclass(frozen=True)
class ClusterKeys:
    """The keys of a release of the chart; the names of its objects begin with `name`."""

    name: str
    namespace: str = ""

    @property
    def home(self) -> SecretHome:
        return SecretHome(self._kubectl, f"{self.name}-keys")

    def server_secret(self) -> bytes:
        secret = self._kubectl.get(f"{self.name}-auth")
        if secret is None:
            raise RegistryError(f"there is no Secret {self.name}-auth: is --release right?")
        text = base64.b64decode(secret["data"].get("server-secret", "")).decode()
        return key_registry.parse_secrets(text, "server-secret")[0]

    def publish(self, record: Record) -> None:
        pod = f"{self.name}-quota-0"
        load = ["exec", "-i", pod, "--", "python", "-m", "services.quota.keys", "load"]
        try:
            self._kubectl.run(load, key_registry.encode(record))
        except RegistryError as error:
            raise RegistryError(
                f"recorded; counts when the pods see the Secret, in a minute or two: {error}"
            ) from error

    @property
    def _kubectl(self) -> Kubectl:
        return Kubectl(self.namespace)
