"""A real Kubernetes API server: etcd and kube-apiserver of the folder `KUBEBUILDER_ASSETS`.

As controller-runtime's envtest does it: no kubelet, no scheduler and no controllers, so that
nothing acts on an object and a namespace that is deleted stays. The server validates, defaults,
admits and watches as a cluster does. Two administrators: what is under test is CLIENT, whose
requests are written to an audit log; TESTER is who prepares and looks.
"""

import base64
import json
import os
import ssl
import subprocess
import time
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from baton.localstack.ports import LOOPBACK, free_ports
from baton.system.parent_death import die_with_parent
from baton.testing.certificates import Authority

ASSETS = os.environ.get("KUBEBUILDER_ASSETS", "")
CLIENT, TESTER = "client-token", "tester-token"
_USERS = ((CLIENT, "client"), (TESTER, "tester"))
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [{"level": "Metadata", "users": ["client"]}, {"level": "None"}],
}
_START_TIMEOUT_S = 120
_SHOWN_BYTES = 2000


def asset(program: str) -> Path:
    """The path of a program of the assets. Raises FileNotFoundError."""
    path = Path(ASSETS) / program
    if not path.exists():
        raise FileNotFoundError(f"KUBEBUILDER_ASSETS={ASSETS} has no {program}")
    return path


class RealApiServer:
    """One server for all tests of a process; a context manager. Each test takes a namespace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._etcd_port, self.port = free_ports(2)
        authority = Authority(folder, "cluster")
        self._files = authority.issue(folder / "server", f"IP:{LOOPBACK}")
        self.authority = authority.certificate
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self.http = httpx.Client(
            base_url=f"https://{LOOPBACK}:{self.port}",
            verify=ssl.create_default_context(cafile=str(self._files.ca)),
            headers={"authorization": f"Bearer {TESTER}"},
            timeout=_START_TIMEOUT_S,
            trust_env=False,
        )

    def restart(self) -> None:
        """Start the API server anew on the same etcd: it has forgotten all earlier versions."""
        _end(self._server)
        self._start_server()

    def new_namespace(self, **labels: str) -> str:
        """Create a namespace with these labels of Pod Security: `enforce`, `warn`."""
        name = f"test-{next(self._numbers)}"
        security = {f"pod-security.kubernetes.io/{mode}": level for mode, level in labels.items()}
        metadata = {"name": name, "labels": security}
        answer = self.http.post("/api/v1/namespaces", json={"metadata": metadata})
        answer.raise_for_status()
        return name

    def requests(self) -> list[str]:
        """What CLIENT asked, in order: verb and URI."""
        lines = (self._folder / "audit.log").read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [f"{event['verb']} {event['requestURI']}" for event in events]

    def kubeconfig(self, token: str = TESTER) -> Path:
        """A file for kubectl."""
        path = self._folder / f"kubeconfig-{token}"
        path.write_text(kubeconfig(f"https://{LOOPBACK}:{self.port}", self.authority, token))
        return path

    def __enter__(self) -> Self:
        try:
            self._start_etcd()
            self._start_server()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.http.close()
        _end(self._server)
        _end(self._etcd)

    def _start_etcd(self) -> None:
        url = f"http://{LOOPBACK}:{self._etcd_port}"
        self._etcd = self._start(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://{LOOPBACK}:0",
            "--unsafe-no-fsync",
        )

    def _start_server(self) -> None:
        key = self._files.key
        self._server = self._start(
            "kube-apiserver",
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self._files.cert}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={self._users()}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._files.cert}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # Nobody is there to make the accounts that it asks for.
            "--disable-admission-plugins=ServiceAccount",
            # An address of loopback is none for an endpoint.
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            f"--audit-policy-file={self._policy()}",
            f"--audit-log-path={self._folder / 'audit.log'}",
        )
        self._wait()

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log(program).open("ab") as log:
            return subprocess.Popen(
                [asset(program), *arguments],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def _wait(self) -> None:
        ends_at = time.monotonic() + _START_TIMEOUT_S
        while not self._is_ready():
            for program, process in (("etcd", self._etcd), ("kube-apiserver", self._server)):
                has_ended = process is None or process.poll() is not None
                if has_ended or time.monotonic() > ends_at:
                    with self._log(program).open("rb") as log:
                        raise RuntimeError(f"{program} does not serve: {_end_of(log)}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _log(self, program: str) -> Path:
        return self._folder / f"{program}.log"

    def _users(self) -> Path:
        path = self._folder / "users.csv"
        lines = (f"{token},{name},{name},system:masters\n" for token, name in _USERS)
        path.write_text("".join(lines))
        return path

    def _policy(self) -> Path:
        path = self._folder / "audit.json"
        path.write_text(json.dumps(_POLICY))
        return path


def kubeconfig(url: str, authority: bytes, token: str, namespace: str = "default") -> str:
    """A kubeconfig (JSON is YAML) of one user at one server."""
    encoded = base64.b64encode(authority).decode()
    cluster = {"server": url, "certificate-authority-data": encoded}
    context = {"cluster": "real", "user": "real", "namespace": namespace}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "clusters": [{"name": "real", "cluster": cluster}],
        "users": [{"name": "real", "user": {"token": token}}],
        "contexts": [{"name": "real", "context": context}],
    }
    return json.dumps(config)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """At once: nothing that it holds is needed."""
    if process is not None:
        process.kill()
        process.wait()


def _end_of(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _SHOWN_BYTES))
    return log.read().decode(errors="replace")
