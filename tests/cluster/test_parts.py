"""What the default values leave out: TLS for clients, their certificates, the admin API, a safety
hook. One upgrade switches all of it on."""

import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.testing.certificates import Authority, MemberFiles
from tests.cluster.release import MODEL, Release, image
from tests.cluster.test_clients import forwarded
from tests.kit.kube.real_cluster import RESTRICTED, RESTRICTED_POD, run, wait_until

ROOT = Path(__file__).parents[2]
NAME = "spiffe://example/acme"
TOKEN = "a-token-that-is-long-enough"
WORD = "forbidden"
VALUES = {
    "quota": {"adminApi": {"existingSecret": "admin-token"}},
    "envoy": {"tlsSecret": "client-tls"},
    "edge": {"settings": {"client_ca_file": "/etc/baton/client-tls/ca.crt"}},
    "gateway": {
        "settings": {
            "safety_url": "http://hook:8090/v1/moderations",
            "certificate_proxies": "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10",
        },
    },
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "clients")


@pytest.fixture(scope="module")
def parts(
    release: Release, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("parts")
    served = authority.issue(folder / "served", "IP:127.0.0.1")
    for name, options in {
        "admin-token": [f"--from-literal=token={TOKEN}"],
        "client-tls": [
            f"--from-file=tls.crt={served.cert}",
            f"--from-file=tls.key={served.key}",
            f"--from-file=ca.crt={served.ca}",
        ],
    }.items():
        release.namespace.kubectl("delete", "secret", name, "--ignore-not-found")
        release.namespace.kubectl("create", "secret", "generic", name, *options)
    release.namespace.apply(*hook(release.namespace.name))
    values = folder / "values.json"
    values.write_text(json.dumps(VALUES))
    release.upgrade("-f", str(values))
    yield release
    release.upgrade()


def hook(namespace: str) -> Iterator[dict[str, Any]]:
    """The example of a safety hook as a pod, and a Service for it."""
    labels = {"app": "hook"}
    metadata = {"name": "hook", "namespace": namespace, "labels": labels}
    program = (ROOT / "examples/word_list_hook.py").read_text()
    files = {"hook.py": program.replace("127.0.0.1", "0.0.0.0"), "words": WORD}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}
    container = {
        "name": "hook",
        "image": image("gateway"),
        "command": ["python", "/hook/hook.py", "/hook/words"],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "hook", "mountPath": "/hook"}],
    }
    spec = {
        "securityContext": RESTRICTED_POD,
        "containers": [container],
        "volumes": [{"name": "hook", "configMap": {"name": "hook"}}],
    }
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    service = {"selector": labels, "ports": [{"port": 8090}]}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service}


@contextmanager
def client(release: Release, authority: Authority, own: MemberFiles | None = None) -> Iterator[Any]:
    """A client over TLS; one with a certificate shows no key."""
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    headers = {"authorization": f"Bearer {release.api_key()}"} if own is None else {}
    with (
        forwarded(release, f"svc/{release.fullname}-envoy", 443) as port,
        httpx.Client(
            base_url=f"https://127.0.0.1:{port}/v1", verify=context, headers=headers, timeout=60
        ) as found,
    ):
        yield found


def ask(asked: Any, question: str = "What is TTFT?") -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 16}
    answer: httpx.Response = asked.post("/chat/completions", json=body)
    return answer


def test_a_key_opens_over_tls(parts: Release, authority: Authority) -> None:
    with client(parts, authority) as asked:
        assert ask(asked).status_code == 200


def test_a_client_certificate_opens_when_it_is_registered(
    parts: Release, authority: Authority, tmp_path: Path
) -> None:
    own = authority.issue(tmp_path / "own", f"URI:{NAME}")
    with client(parts, authority, own) as asked:
        assert ask(asked).status_code == 401
        create = (sys.executable, "-m", "baton.cli", "keys", "create", "--tenant", "acme")
        where = ("--release", parts.fullname, "--namespace", parts.namespace.name)
        run(*create, "--identity", f"cert:{NAME}", *where)
        wait_until(lambda: ask(asked).status_code == 200, "the certificate opens", 150)


def test_the_safety_hook_refuses_a_prompt(parts: Release, authority: Authority) -> None:
    with client(parts, authority) as asked:
        refused = ask(asked, f"Say {WORD}.")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_filter")


def test_a_key_of_the_admin_api_opens_and_lasts(parts: Release, authority: Authority) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with forwarded(parts, f"svc/{parts.fullname}-admin", 8081) as port:
        url = f"http://127.0.0.1:{port}/admin/v1/keys"
        assert httpx.get(url).status_code == 401
        made = httpx.post(url, headers=headers, json={"tenant": "acme"})
    assert made.status_code in (200, 201), made.text
    with client(parts, authority) as asked:
        asked.headers["authorization"] = f"Bearer {made.json()['key']}"
        wait_until(lambda: ask(asked).status_code == 200, "the key opens", 10)
        parts.namespace.roll("redis")
        parts.namespace.roll("quota")
        assert ask(asked).status_code == 200
