"""Mutual TLS between services: one certificate, its key and the authorities trusted, from files.

Every peer's certificate carries the same DNS name (`peer_name`), and both ends of a connection
check it: the signature of a cluster's authority is not enough. With `per_service` each also names
its service ("quota.baton"), and a server must show the name as which it was called. The files are
checked again for each new connection and call, so a renewed certificate needs no restart; open
connections go on. While the files do not fit each other, as in the middle of a renewal, the last
ones that did stay in use. Without files, a process listens only on addresses of this machine,
unless the setting `plaintext` says otherwise. Knows neither servers nor channels (grpc_server.py,
grpc_channel.py).
"""

import ipaddress
import os
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from baton.runtime import environment, logs
from baton.runtime.environment import SettingsError

PREFIX = "BATON_TLS_"
_log = logs.get("peer_tls")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All three files (PEM), or none of them."""

    # Certificate of this process (PEM). All three files are set, or none.
    cert_file: Path | None = None
    # The key of that certificate (PEM).
    key_file: Path | None = None
    # The authorities whose certificates are accepted, from callers and from servers (PEM).
    ca_file: Path | None = None
    # The DNS name that the certificate of every peer must carry.
    peer_name: str = "baton"
    # Each service has a certificate of its own, which also names it ("quota.baton"): one without
    # such a name is refused, and so is a server of another service than the one that was called.
    per_service: bool = False
    # Listen without TLS on addresses that other machines reach.
    plaintext: bool = False

    def __post_init__(self) -> None:
        if len({file is None for file in (self.cert_file, self.key_file, self.ca_file)}) > 1:
            raise ValueError("cert_file, key_file and ca_file go together")
        if not self.peer_name:
            raise ValueError("peer_name must not be empty")
        if self.plaintext and self.cert_file:
            raise ValueError("plaintext is set, and so are certificate files")


@dataclass(frozen=True, slots=True)
class Material:
    """The content of the files at one moment, PEM. A new object whenever they have changed."""

    certificates: bytes
    key: bytes
    authorities: bytes

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        pairs = [(self.key, self.certificates)]
        return grpc.ssl_server_certificate_configuration(pairs, self.authorities)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificates)


class PeerTls:
    """This process's identity, and the name that its peers must show. Methods run in any thread."""

    def __init__(
        self, files: tuple[Path, Path, Path], peer_name: str, *, per_service: bool = False
    ) -> None:
        """`files`: certificate, key and authorities. Raises SettingsError when they cannot be read
        or do not fit each other."""
        self.peer_name = peer_name
        self.per_service = per_service
        self._files = files
        self._seen: tuple[tuple[int, ...], ...] = ()
        # The last failure that was logged.
        self._failure: str | None = None
        # By protocol, and the material that each was made of.
        self._contexts: dict[int, tuple[Material, ssl.SSLContext]] = {}
        try:
            self._seen = self._signature()
            self._material = self._read()
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(f"{PREFIX}*_FILE: {self._reason(error)}") from error

    def server_name(self, service: str) -> str:
        """The DNS name that a server of `service` must show; that of all peers without one."""
        return f"{service}.{self.peer_name}" if service and self.per_service else self.peer_name

    def material(self) -> Material:
        """The newest content of the files that fits together."""
        try:
            signature = self._signature()
            if signature != self._seen:
                self._seen = signature
                self._material = self._read()
                self._failure = None
                _log.info("certificates_renewed")
        except OSError as error:
            # Logged once, not for every call.
            reason = self._reason(error)
            if reason != self._failure:
                self._failure = reason
                _log.warning("certificates_kept", reason=reason)
        return self._material

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a server that asks every caller for a certificate."""
        served = self.material()

        def renewed() -> Any:  # None stands for no change
            nonlocal served
            newest = self.material()
            if newest is served:
                return None
            served = newest
            return newest.server_configuration()

        return grpc.dynamic_ssl_server_credentials(
            served.server_configuration(), renewed, require_client_authentication=True
        )

    def client_context(self) -> ssl.SSLContext:
        """A context of the newest files, for a connection to a peer whose name it checks."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def server_context(self) -> ssl.SSLContext:
        """A context for all connections of a server, which takes the newest files for each.

        A caller may show a certificate, which is checked then; whether it must is the server's.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)

        def renewed(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
            connection.context = self._context(ssl.PROTOCOL_TLS_SERVER)

        context.sni_callback = renewed  # called without a name as well
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        material = self.material()
        made_of, context = self._contexts.get(protocol, (None, None))
        if context is None or made_of is not material:
            try:
                fresh = self._load(protocol)
            except OSError as error:
                if context is None:
                    raise SettingsError(f"{PREFIX}*_FILE: {self._reason(error)}") from error
                return context  # they change right now
            self._contexts[protocol] = (material, fresh)
            return fresh
        return context

    def _load(self, protocol: int) -> ssl.SSLContext:
        cert_file, key_file, ca_file = self._files
        context = ssl.SSLContext(protocol)
        # An empty password: an encrypted key must fail, not prompt for one.
        context.load_cert_chain(cert_file, key_file, password="")
        context.load_verify_locations(ca_file)
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.verify_mode = ssl.CERT_OPTIONAL
            # A session that is resumed would outlive the certificates of its handshake.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def _signature(self) -> tuple[tuple[int, ...], ...]:
        """A value that changes with the files: a mounted secret is renewed by moving a link."""
        stats = [os.stat(file) for file in self._files]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _read(self) -> Material:
        """Read the files. Raises OSError when one is absent or unfit, or changed meanwhile."""
        self._load(ssl.PROTOCOL_TLS_CLIENT)
        material = Material(*(file.read_bytes() for file in self._files))
        if self._signature() != self._seen:
            self._seen = ()  # look again next time
            raise OSError("the files changed while they were read")
        return material

    def _reason(self, error: OSError) -> str:
        names = ", ".join(map(str, self._files))
        return f"{names}: {error.strerror or error}"


@cache
def of_process() -> PeerTls | None:
    """The identity that this process's BATON_TLS_* variables give it; None without files.

    Raises SettingsError.
    """
    settings = _settings()
    if not (settings.cert_file and settings.key_file and settings.ca_file):
        return None
    files = (settings.cert_file, settings.key_file, settings.ca_file)
    return PeerTls(files, settings.peer_name, per_service=settings.per_service)


def check_listen(listen: str) -> None:
    """Check an address to listen on.

    Raises SettingsError when other machines would reach this process without TLS.
    """
    if not is_local(listen) and of_process() is None and not _settings().plaintext:
        raise SettingsError(
            f"{listen} is reached from other machines, and this service has no certificate: "
            f"set {PREFIX}CERT_FILE, {PREFIX}KEY_FILE and {PREFIX}CA_FILE, or {PREFIX}PLAINTEXT=1"
        )


def is_local(listen: str) -> bool:
    """True when only this machine reaches the address "host:port" or "unix:path"."""
    if listen.startswith("unix:"):
        return True
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _settings() -> Settings:
    return environment.parse(Settings, PREFIX, os.environ)
