"""Clients of Redis: of one server, of the primary that Sentinels name, or of a cluster.

All keys of a script are in one hash slot, so that nothing else depends on which one it is.
"""

from asyncio import StreamWriter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError

from baton.runtime.peer_tls import PeerTls

CLUSTER = "+cluster"
SENTINEL = "+sentinel"
_SENTINEL_PORT = 26379
_REDIS_PORT = 6379
_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
_SERVER_NAME = "ssl_server_name"
# asyncio's streams make a writer wait when so many bytes are not sent yet.
_WRITE_BYTES = 64 * 1024


class PasswordFile(CredentialProvider):
    """Redis's password, read for each connection; without `username`, that of the default user."""

    def __init__(self, path: Path, username: str = "") -> None:
        self._path = path
        self._username = username

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Read the file. Raises redis's ConnectionError, which names the file, not its text."""
        try:
            password = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RedisConnectionError(f"{self._path}: {type(error).__name__}") from None
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def password_in(path: Path | None, username: str = "") -> PasswordFile | None:
    """The credentials of a setting that may name a password file or not."""
    return None if path is None else PasswordFile(path, username)


class _QuickWrites(AbstractConnection):
    """A connection that packs commands in C, and waits for the socket only where that may block.

    redis-py joins the bytes of each argument, and makes a task and a timer for each write.
    """

    __slots__ = ()

    def pack_command(self, *args: Any) -> list[bytes]:
        name, *rest = args
        return [pack_command((*(name.split() if isinstance(name, str) else (name,)), *rest))]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        writer = self._writer
        if writer is None or self.health_check_interval or _may_block(writer, command):
            await super().send_packed_command(command, check_health)
        else:
            writer.writelines(command)


def _may_block(writer: StreamWriter, command: object) -> bool:
    if not isinstance(command, list):
        return True
    num_bytes = writer.transport.get_write_buffer_size() + sum(map(len, command))
    return num_bytes > _WRITE_BYTES


class _PeerConnection(SSLConnection):
    """A connection to a server that has a certificate as our services have, for `ssl_server_name`.

    redis-py reads the three files once for each connection, and never again.
    """

    def __init__(self, *, ssl_server_name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._server_name = ssl_server_name

    def _connection_arguments(self) -> Mapping[str, Any]:
        if not self._server_name:
            return dict(super()._connection_arguments())
        files = (self.certfile, self.keyfile, self.ca_certs)
        self.ssl_context.context = _identity(*files, self._server_name).client_context()
        arguments = super()._connection_arguments()
        return {**arguments, "server_hostname": self._server_name}


@cache
def _identity(cert_file: str, key_file: str, ca_file: str, server_name: str) -> PeerTls:
    return PeerTls((Path(cert_file), Path(key_file), Path(ca_file)), server_name)


def _quick(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    mixed = (_QuickWrites, _PeerConnection) if issubclass(kind, SSLConnection) else (_QuickWrites,)
    return type(f"Quick{kind.__name__}", (*mixed, kind), {})


class _QuickPool(BlockingConnectionPool):
    """A pool that takes its locks, timers and events only while a caller waits for a connection.

    With them redis-py makes 60 calls to hand out one that is there and to take it back, as many as
    for the command itself.
    """

    _num_waiting = 0

    def __init__(
        self, *, connection_class: type[AbstractConnection] = Connection, **options: Any
    ) -> None:
        super().__init__(connection_class=_quick(connection_class), **options)

    async def get_connection(self, *names: Any, **options: Any) -> AbstractConnection:
        if self._num_waiting or not self.can_get_connection():
            return await self._wait_for_connection()
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        if self._num_waiting or connection.should_reconnect():  # type: ignore[no-untyped-call]
            await super().release(connection)
        else:
            self._in_use_connections.remove(connection)
            self._available_connections.append(connection)

    async def _wait_for_connection(self) -> AbstractConnection:
        self._num_waiting += 1
        try:
            connection: AbstractConnection = await super().get_connection()  # type: ignore[no-untyped-call]
            return connection
        finally:
            self._num_waiting -= 1


class _SentinelPool(SentinelConnectionPool, _QuickPool):
    """Connections to the primary, for which callers wait when all are in use."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # the end, not a change of the primary
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


def connect(
    url: str,
    timeout_s: float,
    max_connections: int,
    credentials: PasswordFile | None = None,
    sentinel_credentials: PasswordFile | None = None,
) -> Redis | RedisCluster:
    """Return a client for `url`, which connects on first use. Raises ValueError for a bad URL.

    A caller waits for a free connection, connects and reads for at most `timeout_s` each (in a
    cluster it does not wait for a connection). `max_connections` is for each node. Sentinels are
    shown `sentinel_credentials` alone, and never Redis's `credentials`.
    """
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        "protocol": 2,
        "credential_provider": credentials,
    }
    scheme = urlsplit(url).scheme
    _check_name(url)
    if scheme.endswith(CLUSTER):
        return _cluster(url.replace(CLUSTER, "", 1), options)
    if scheme.endswith(SENTINEL):
        return _primary(url.replace(SENTINEL, "", 1), timeout_s, options, sentinel_credentials)
    return Redis.from_pool(_QuickPool.from_url(url, timeout=timeout_s, **options))


def _cluster(url: str, options: dict[str, Any]) -> RedisCluster:
    """`redis+cluster://node:6379,node:6379`: any nodes; the others are found through them."""
    nodes = [ClusterNode(host, port) for host, port in _hosts(url, _REDIS_PORT)]
    return RedisCluster(startup_nodes=nodes, **_tls(url), **options)


def _primary(
    url: str,
    timeout_s: float,
    options: dict[str, Any],
    sentinel_credentials: PasswordFile | None,
) -> Redis:
    """`redis+sentinel://sentinel:26379,sentinel:26379/name/0`: the primary called `name`."""
    name, _, db = urlsplit(url).path.strip("/").partition("/")
    if not name:
        raise ValueError("a Sentinel URL ends with the name of the primary: /mymaster/0")
    tls = _tls(url)
    # Without `sentinel_kwargs` redis-py would ask the Sentinels with timeouts alone: in plaintext.
    # Its own ten tries at a Sentinel that is away pause for seconds, and the next one may answer.
    asked_with = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        "retry": options["retry"],
        "credential_provider": sentinel_credentials,
        **tls,
    }
    hosts = _hosts(url, _SENTINEL_PORT)
    sentinels = Sentinel(hosts, sentinel_kwargs=asked_with)  # type: ignore[no-untyped-call]
    pool = _SentinelPool(  # type: ignore[no-untyped-call]
        name, sentinels, timeout=timeout_s, db=int(db or 0), **tls, **options
    )
    return Redis.from_pool(pool)


def _hosts(url: str, default_port: int) -> list[tuple[str, int]]:
    hosts = (entry.rpartition(":") for entry in urlsplit(url).netloc.split(","))
    return [(host or port, int(port) if host else default_port) for host, _, port in hosts]


def _check_name(url: str) -> None:
    """Read the files of a server with a name of its own. Raises ValueError, SettingsError."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if not (name := given.get(_SERVER_NAME)):
        return
    if parts.scheme != "rediss" or not given.keys() >= {*_FILES}:
        raise ValueError(f"{_SERVER_NAME} is for rediss:// and one server, with {_FILES}")
    _identity(*(given[file] for file in _FILES), name)


def _tls(url: str) -> dict[str, Any]:
    """What the scheme and the query say about TLS, as redis-py's own URLs have it."""
    parts = urlsplit(url)
    options = parse_url(urlunsplit((parts.scheme, "host", "", parts.query, "")))
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return {"ssl": True, **tls} if parts.scheme == "rediss" else {}
