"""`baton keys --release`: the keys of a release of the chart, in a Secret."""

import base64
import json
import sys
from pathlib import Path

import pytest

from baton.cli.key_homes import ClusterKeys
from baton.cli.keys import create_key
from baton.keys import changes
from baton.keys.changes import NewKey
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import RegistryError

SECRET = b"s" * 32
# Secrets are files; like the API server, it refuses what is not based on the latest version.
KUBECTL = """#!{python}
import json, os, pathlib, sys
folder = pathlib.Path({folder!r})
arguments = sys.argv[1:]
assert arguments[:2] == ["-n", "prod"], arguments
verb = arguments[2]
if verb == "get":
    file = folder / (arguments[4] + ".json")
    print(file.read_text() if file.exists() else "")
elif verb == "exec":
    if (folder / "no-pod").exists():
        sys.exit("pod not found")
    with (folder / "loaded").open("ab") as loaded:
        loaded.write(sys.stdin.buffer.read())
else:
    secret = json.load(sys.stdin)
    file = folder / (secret["metadata"]["name"] + ".json")
    version = json.loads(file.read_text())["metadata"]["resourceVersion"] if file.exists() else 0
    if (folder / "conflict").exists() or secret["metadata"].get("resourceVersion", 0) != version:
        sys.exit("the object has been modified")
    secret["metadata"]["resourceVersion"] = version + 1
    file.write_text(json.dumps(secret))
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL.format(python=sys.executable, folder=str(tmp_path)))
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(kubectl.parent))
    data = {"server-secret": base64.b64encode(SECRET.hex().encode()).decode()}
    (tmp_path / "baton-auth.json").write_text(json.dumps({"data": data}))
    return tmp_path


KEYS = ClusterKeys("baton", "prod")


def test_keys_are_written_into_the_secret_and_given_to_the_quota_service(cluster: Path) -> None:
    first = create_key(KEYS, NewKey("acme", KeyLimits(requests_per_minute=3)))
    create_key(KEYS, NewKey("other"))
    records = list(KEYS.home.read().keys.values())
    assert [record.tenant for record in records] == ["acme", "other"]
    assert records[0].digest == key_registry.key_digest(SECRET, first).hex()
    loaded = key_registry.parse((cluster / "loaded").read_bytes(), "loaded")
    assert list(loaded.keys.values()) == records
    assert first not in (cluster / "baton-keys.json").read_text()


def test_a_revocation_stays_in_the_secret(cluster: Path) -> None:
    create_key(KEYS, NewKey("acme"))
    [record] = KEYS.home.read().keys.values()
    changes.revoke(KEYS.home, record.key_id)
    assert [record.revoked for record in KEYS.home.read().keys.values()] == [True]


def test_a_secret_that_another_one_changed_meanwhile_is_not_overwritten(cluster: Path) -> None:
    create_key(KEYS, NewKey("acme"))
    (cluster / "conflict").touch()
    with pytest.raises(RegistryError, match="changes all the time"):
        create_key(KEYS, NewKey("other"))
    assert [record.tenant for record in KEYS.home.read().keys.values()] == ["acme"]


def test_a_key_that_no_pod_took_yet_is_recorded(cluster: Path) -> None:
    (cluster / "no-pod").touch()
    with pytest.raises(RegistryError, match="recorded"):
        create_key(KEYS, NewKey("acme"))
    assert len(KEYS.home.read().keys) == 1


def test_keys_that_do_not_fit_into_a_secret_go_into_another(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.keys.homes.MAX_BYTES", 400)
    create_key(KEYS, NewKey("acme"))
    create_key(KEYS, NewKey("other"))
    assert (cluster / "baton-keys-1.json").exists()
    assert [record.tenant for record in KEYS.home.read().keys.values()] == ["acme", "other"]


def test_a_release_that_does_not_exist_is_named(cluster: Path) -> None:
    with pytest.raises(RegistryError, match="batton-auth"):
        create_key(ClusterKeys("batton", "prod"), NewKey("acme"))


def test_a_machine_without_kubectl_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RegistryError, match="kubectl is not installed"):
        KEYS.home.read()
