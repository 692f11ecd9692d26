"""A channel whose calls show the newest certificate.

grpc fixes the credentials of a channel when it is made. This one opens another channel when the
files have changed, for all calls from then on. Running calls stay where they are: grpc keeps their
connection until the last one has ended. Knows no service.
"""

from collections.abc import Callable
from typing import Any

import grpc

from baton.runtime.peer_tls import Material, PeerTls

Options = list[tuple[str, int | str]]


class RenewedChannel(grpc.aio.Channel):
    """A channel like those of `grpc.aio.secure_channel`; connects on first use."""

    def __init__(self, target: str, options: Options, tls: PeerTls, service: str) -> None:
        self._target = target
        # Peers are dialled by address, and their certificates carry a name.
        self._options = [*options, ("grpc.ssl_target_name_override", tls.server_name(service))]
        self._tls = tls
        self._material = tls.material()
        self._channel = self._open(self._material)

    def _open(self, material: Material) -> grpc.aio.Channel:
        credentials = material.channel_credentials()
        return grpc.aio.secure_channel(self._target, credentials, self._options)

    def _newest(self) -> grpc.aio.Channel:
        material = self._tls.material()
        if material is not self._material:
            self._material = material
            self._channel = self._open(material)
        return self._channel

    def _method(self, kind: str, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
        """A stub's method on the newest channel; made again when there is a newer one."""
        made_on: grpc.aio.Channel | None = None
        made: Any = None

        def call(*request: Any, **options: Any) -> Any:
            nonlocal made_on, made
            if made_on is not (newest := self._newest()):
                made_on, made = newest, getattr(newest, kind)(*arguments, **keywords)
            return made(*request, **options)

        return call

    def unary_unary(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("unary_unary", *arguments, **keywords)

    def unary_stream(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("unary_stream", *arguments, **keywords)

    def stream_unary(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("stream_unary", *arguments, **keywords)

    def stream_stream(self, *arguments: Any, **keywords: Any) -> Any:
        return self._method("stream_stream", *arguments, **keywords)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._newest().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> "RenewedChannel":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
