"""Envoy messages with several users."""

from datetime import timedelta

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    SocketAddress,
    SocketOption,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
)
from envoy_data_plane.google.protobuf import Any

from baton.runtime.discovery.addresses import host_and_port

# Linux's numbers, which Envoy expects, under the kernel's names.
_SOL_SOCKET, _SO_SNDBUF, _SO_RCVBUF = 1, 7, 8
_IPPROTO_TCP, _TCP_USER_TIMEOUT = 6, 18


def packed(message: betterproto2.Message) -> Any:
    return Any.pack(message)


def extension(name: str, message: betterproto2.Message) -> TypedExtensionConfig:
    return TypedExtensionConfig(name=name, typed_config=packed(message))


def http_filter(manager: HttpConnectionManager) -> Filter:
    """The network filter that speaks HTTP."""
    return Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=packed(manager)
    )


def address(text: str) -> Address:
    """The address of "host:port"."""
    host, port = host_and_port(text)
    return Address(socket_address=SocketAddress(address=host, port_value=port))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def from_ads() -> ConfigSource:
    """A source of configuration: the stream to the control plane, without a timeout.

    An Envoy without its configuration must not say that it is ready.
    """
    return ConfigSource(
        ads=AggregatedConfigSource(),
        initial_fetch_timeout=timedelta(0),
        resource_api_version=ApiVersion.V3,
    )


def send_buffer(num_bytes: int) -> SocketOption:
    return _integer_option("send buffer", (_SOL_SOCKET, _SO_SNDBUF), num_bytes)


def receive_buffer(num_bytes: int) -> SocketOption:
    return _integer_option("receive buffer", (_SOL_SOCKET, _SO_RCVBUF), num_bytes)


def user_timeout(of_s: float) -> SocketOption:
    """How long written bytes may wait for the peer's kernel, before the connection is given up."""
    return _integer_option("user timeout", (_IPPROTO_TCP, _TCP_USER_TIMEOUT), round(of_s * 1000))


def _integer_option(description: str, option: tuple[int, int], value: int) -> SocketOption:
    level, name = option
    return SocketOption(description=description, level=level, name=name, int_value=value)
