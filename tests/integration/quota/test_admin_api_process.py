"""The admin API as a process serves it, and its registry in Secrets, over a stub API server; with
`KUBEBUILDER_ASSETS` over a real one as well."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from baton.keys import changes
from baton.keys.changes import KeyChange, NewKey
from baton.keys.homes import SecretHome
from baton.keys.secrets import ApiServer, HomeAway
from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime.listening_socket import listening_socket
from baton.runtime.process import Misconfigured, Process
from baton.system.clock import SystemClock
from baton.testing.redis_server import RedisServer
from services.quota.__main__ import serve
from services.quota.settings import Settings
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key
from tests.kit.kube.real_kube_api import (
    API_SERVERS,
    RealKubeApi,
    api_server,
    only_the_stub,
)

SECRET = b"s" * 32
TOKEN = "an-admin-token-of-24-chars"


async def test_the_service_serves_its_admin_api_on_a_port_of_its_own() -> None:
    with TemporaryDirectory(prefix="baton-") as name, RedisServer(Path(name)) as redis:
        folder = Path(name)
        (folder / "secret").write_text(SECRET.hex())
        (folder / "token").write_text(TOKEN)
        ports = free_ports(2)
        settings = Settings(
            listen=f"{LOOPBACK}:{ports[0]}",
            redis_url=redis.url,
            redis_timeout_s=60.0,
            registry_file=folder / "registry.jsonl",
            secret_file=folder / "secret",
            api_listen=f"{LOOPBACK}:{ports[1]}",
            api_token_file=folder / "token",
        )
        process = Process("quota", SystemClock(), asyncio.Event())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(process, settings))
            async with httpx.AsyncClient(base_url=f"http://{settings.api_listen}") as http:
                made = await until_it_answers(http)
            process.stopping.set()
        assert made.status_code == 201
        assert made.json()["key_id"] in settings.registry_file.read_text()


async def test_a_port_that_is_taken_is_told_before_anything_is_served(tmp_path: Path) -> None:
    with listening_socket(f"{LOOPBACK}:0") as taken:
        taken.listen()
        listen = f"{LOOPBACK}:{taken.getsockname()[1]}"
        settings = Settings(
            redis_url="redis://127.0.0.1:1",
            registry_file=tmp_path / "registry.jsonl",
            secret_file=tmp_path / "secret",
            api_listen=listen,
            api_token_file=tmp_path / "token",
        )
        with pytest.raises(Misconfigured, match=listen):
            await serve(Process("quota", SystemClock(), asyncio.Event()), settings)


async def until_it_answers(http: httpx.AsyncClient) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with asyncio.timeout(60):
        while True:
            try:
                return await http.post("/admin/v1/keys", json={"tenant": "acme"}, headers=headers)
            except httpx.ConnectError:
                await asyncio.sleep(0.05)


@pytest.fixture(params=API_SERVERS)
def api(request: pytest.FixtureRequest) -> Iterator[KubeApi | RealKubeApi]:
    with api_server(request) as running:
        yield running


@pytest.fixture
def home(api: KubeApi | RealKubeApi, tmp_path: Path) -> SecretHome:
    api.write_account(tmp_path)
    return SecretHome(ApiServer(api.url, tmp_path), "baton-keys")


def test_keys_are_kept_in_a_secret_through_the_api_server(
    home: SecretHome, api: KubeApi | RealKubeApi
) -> None:
    key, record = changes.create(home, SECRET, NewKey("acme"))
    changes.update(home, record.key_id, KeyChange(priority=7).applied_to)
    assert home.read().keys[record.key_id].priority == 7
    kept = api.store.get(Key("", "secrets", api.namespace, "baton-keys"))
    assert key not in json.dumps(kept)


def test_another_writer_of_the_secret_loses_nothing(home: SecretHome) -> None:
    _, first = changes.create(home, SECRET, NewKey("acme"))
    _, record = changes.create(home, SECRET, NewKey("acme"))
    meanwhile = [lambda: changes.revoke(home, first.key_id)]

    def changed(known: changes.KeyRecord) -> changes.KeyRecord:
        if meanwhile:
            meanwhile.pop()()
        return KeyChange(priority=7).applied_to(known)

    changes.update(home, record.key_id, changed)
    keys = home.read().keys
    assert (keys[first.key_id].revoked, keys[record.key_id].priority) == (True, 7)


@only_the_stub
@pytest.mark.parametrize("status", [401, 500])
def test_an_api_server_that_refuses_is_told(home: SecretHome, api: KubeApi, status: int) -> None:
    api.refuse_with = status
    with pytest.raises(HomeAway, match=str(status)):
        home.read()


def test_an_api_server_that_is_away_is_told(home: SecretHome, api: KubeApi | RealKubeApi) -> None:
    api.stop()
    with pytest.raises(HomeAway, match="does not answer"):
        home.read()


@only_the_stub
def test_rights_that_are_missing_are_told_and_not_taken_for_an_empty_registry(
    home: SecretHome, api: KubeApi
) -> None:
    api.refuse_with = 403
    with pytest.raises(HomeAway, match="may not read the Secret baton-keys"):
        home.read()
