"""Certificates for tests, made by the `openssl` program: authorities, and their members."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from baton.runtime.peer_tls import PeerTls

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Authority:
    """A new certificate authority, as two files in `folder`."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        _openssl("req", "-x509", *_KEY, "-subj", f"/CN={self.name}",
                 "-keyout", self._file("key"), "-out", self._file("crt"))  # fmt: skip

    @property
    def certificate(self) -> bytes:
        return self._file("crt").read_bytes()

    def issue(self, folder: Path, san: str = "DNS:baton") -> "MemberFiles":
        """Write a member's three files into `folder`; files that are there are replaced."""
        folder.mkdir(exist_ok=True)
        files = MemberFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
        _openssl("req", "-x509", *_KEY, "-subj", "/CN=member", "-addext", f"subjectAltName={san}",
                 "-CA", self._file("crt"), "-CAkey", self._file("key"),
                 "-keyout", files.key, "-out", files.cert)  # fmt: skip
        files.ca.write_bytes(self.certificate)
        return files

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"


@dataclass(frozen=True)
class MemberFiles:
    """The three files of a service: certificate, key and authority."""

    cert: Path
    key: Path
    ca: Path

    def tls(self, peer_name: str = "baton", *, per_service: bool = False) -> PeerTls:
        return PeerTls((self.cert, self.key, self.ca), peer_name, per_service=per_service)

    def environment(self) -> dict[str, str]:
        """The variables that name these files to a process."""
        return {
            "BATON_TLS_CERT_FILE": str(self.cert),
            "BATON_TLS_KEY_FILE": str(self.key),
            "BATON_TLS_CA_FILE": str(self.ca),
        }


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=_TIMEOUT_S)
