"""Mutual TLS between services: one certificate, its key and the authorities trusted, from files.

Every member's certificate carries the same DNS name (`peer_name`), and both ends of a connection
ask for it: that an authority of the cluster has signed something is not enough. Files are looked at
again for each new connection and call, so a renewed certificate needs no restart; connections that
stand go on. Files that do not fit each other, as in the middle of a renewal, leave the last ones
that did in use. Without files, only addresses of this machine are listened on, unless the setting
`plaintext` says otherwise. Knows neither servers nor channels (grpc_server.py, grpc_channel.py).
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

    cert_file: Path | None = None
    key_file: Path | None = None
    # The authorities whose certificates are accepted, of callers and of the called alike.
    ca_file: Path | None = None
    # The DNS name that the certificate of every peer must carry.
    peer_name: str = "baton"
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
    """What the files held at one moment, PEM. A new object whenever they have changed."""

    certificates: bytes
    key: bytes
    authorities: bytes

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        pairs = [(self.key, self.certificates)]
        return grpc.ssl_server_certificate_configuration(pairs, self.authorities)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authorities, self.key, self.certificates)


class PeerTls:
    """What this process shows its peers, and what it asks of them. Methods run in any thread."""

    def __init__(self, cert_file: Path, key_file: Path, ca_file: Path, peer_name: str) -> None:
        """Raises SettingsError when the files cannot be read or do not fit each other."""
        self.peer_name = peer_name
        self._files = (cert_file, key_file, ca_file)
        self._seen: tuple[tuple[int, ...], ...] = ()
        self._failure = ""
        try:
            self._seen = self._signature()
            self._material = self._read()
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(f"{PREFIX}*_FILE: {self._reason(error)}") from error

    def material(self) -> Material:
        """The newest that the files held and that fits together."""
        try:
            signature = self._signature()
            if signature != self._seen:
                self._seen = signature
                self._material = self._read()
                self._failure = ""
                _log.info("certificates_renewed")
        except OSError as error:
            # Said once, not for every call.
            if self._failure != (reason := self._reason(error)):
                self._failure = reason
                _log.warning("certificates_kept", reason=reason)
        return self._material

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that asks every caller for a certificate."""
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

    def _signature(self) -> tuple[tuple[int, ...], ...]:
        """Changes with the files: a mounted secret is renewed by moving a link."""
        stats = [os.stat(file) for file in self._files]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _read(self) -> Material:
        """Raises OSError when a file is absent or unfit, or changed meanwhile."""
        cert_file, key_file, ca_file = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # An empty password: an encrypted key must fail, not ask.
        context.load_cert_chain(cert_file, key_file, password="")
        context.load_verify_locations(ca_file)
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
    return PeerTls(settings.cert_file, settings.key_file, settings.ca_file, settings.peer_name)


def check_listen(listen: str) -> None:
    """Raises SettingsError when this process, without TLS, would be reached from other machines."""
    if not is_local(listen) and of_process() is None and not _settings().plaintext:
        raise SettingsError(
            f"{listen} is reached from other machines, and this service has no certificate: "
            f"set {PREFIX}CERT_FILE, {PREFIX}KEY_FILE and {PREFIX}CA_FILE, or {PREFIX}PLAINTEXT=1"
        )


def is_local(listen: str) -> bool:
    """Whether only this machine reaches the address "host:port" or "unix:path"."""
    if listen.startswith("unix:"):
        return True
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _settings() -> Settings:
    return environment.parse(Settings, PREFIX, os.environ)
