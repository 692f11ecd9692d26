"""The bundled Redis, run by the chart's own script and configuration."""

import asyncio
import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import redis
from redis.asyncio import Redis

from baton.localstack.ports import free_ports
from baton.runtime.redis_connections import PasswordFile, connect
from baton.testing.certificates import Authority, MemberFiles
from baton.testing.redis_server import server_binary
from tests import needs
from tests.chart.rendered import (
    containers,
    environment,
    named,
    pod_of,
    profile,
    render,
)

PASSWORD = "of quota and gateways"
NAMES = {"redis": "DNS:baton,DNS:redis.baton", "quota": "DNS:baton,DNS:quota.baton",
         "tokenizer": "DNS:baton,DNS:tokenizer.baton"}  # fmt: skip


@contextmanager
def serving(
    objects: list[dict[str, Any]], folder: Path, programs: dict[str, str], **changes: str
) -> Iterator[int]:
    """The server of these objects, on a port of this machine, with all files in one folder."""
    config = named(objects, "ConfigMap", "baton-redis")["data"]
    (folder / "data").mkdir()
    (folder / "bin").mkdir()
    for name, program in programs.items():
        (folder / "bin" / name).symlink_to(program)
    (port,) = free_ports(1)
    moved = {"port 6379": f"port {port}", "/etc/baton/redis": str(folder), **changes,
             "dir /data": f"dir {folder / 'data'}", "/etc/baton/tls": str(folder / "tls"),
             "/tmp/redis.": f"{folder}/own-redis."}  # fmt: skip
    for name in ("redis.conf", "start.sh"):
        text = config[name]
        for old, new in moved.items():
            text = text.replace(old, new)
        (folder / name).write_text(text)
    server = subprocess.Popen(
        ["sh", str(folder / "start.sh")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        # With what the script leaves behind it.
        process_group=0,
    )
    try:
        assert server.stdout is not None
        assert any("eady to accept" in line for line in server.stdout)
        yield port
    finally:
        os.killpg(server.pid, 9)
        server.communicate()


@pytest.mark.parametrize("password", ["", 'of mine, with "quotes" \\ and $signs'])
def test_redis_starts_with_its_configuration_and_asks_for_the_password(
    tmp_path: Path, password: str
) -> None:
    objects = render({"tls": {"mode": "plaintext"}})
    secret = named(objects, "Secret", "baton-redis")["data"]
    password = password or base64.b64decode(secret["password"]).decode()
    (tmp_path / "password").write_text(password)
    with serving(objects, tmp_path, {"valkey-server": str(server_binary())}) as port:
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis(port=port, password=password) as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            # A full Redis refuses writes; one over its pod's limit is killed.
            assert 0.5 * 2**30 < int(client.config_get("maxmemory")["maxmemory"]) < 0.75 * 2**30


@pytest.mark.parametrize(
    ("tls", "secret", "names"),
    [
        ({}, "baton-certificates", ("gateway.baton", "redis.baton")),
        ({"mode": "certManager"}, "baton-tls-redis", ("gateway.baton", "redis.baton")),
        ({"mode": "existingSecret", "existingSecret": "own"}, "own", ("baton", "baton")),
        (
            {"mode": "existingSecret", "existingSecret": "own", "perService": True},
            "own-redis",
            ("gateway.baton", "redis.baton"),
        ),
    ],
    ids=["generated", "certManager", "one for all", "one for each"],
)
def test_envoy_and_redis_speak_tls_where_services_do(
    tls: dict[str, Any], secret: str, names: tuple[str, str]
) -> None:
    objects = render({"tls": tls}) if tls else profile("default")
    gateway = named(objects, "Deployment", "baton-gateway")
    assert environment(gateway)["BATON_GATEWAY_CALLERS"] == "envoy"
    (container,) = containers(gateway)
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    edge = environment(named(objects, "Deployment", "baton-edge"))
    server = named(objects, "StatefulSet", "baton-redis")
    volumes = {one["name"]: one for one in pod_of(server)["spec"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == secret
    quota = environment(named(objects, "StatefulSet", "baton-quota"))
    address = quota["BATON_QUOTA_REDIS_URL"]
    assert environment(gateway)["BATON_GATEWAY_STORE_URL"] == address
    assert address.startswith("rediss://baton-redis:6379/0?")
    shown = dict(parse_qsl(urlsplit(address).query))["ssl_server_name"]
    assert (edge["BATON_EDGE_GATEWAY_NAME"], shown) == names
    worker = environment(named(objects, "Deployment", "baton-baton-demo-decode"))
    for services in (quota, edge, worker, environment(gateway)):
        assert services.get("BATON_TLS_PER_SERVICE") == ("true" if "." in shown else None)
    lines = named(objects, "ConfigMap", "baton-redis")["data"]["redis.conf"].splitlines()
    assert {"port 0", "tls-port 6379", "tls-auth-clients yes"} <= {line.strip() for line in lines}


def test_nothing_speaks_tls_in_plaintext_and_gateways_do_not_where_they_are_the_way_in() -> None:
    objects = render({"tls": {"mode": "plaintext"}})
    assert environment(named(objects, "StatefulSet", "baton-quota"))[
        "BATON_QUOTA_REDIS_URL"
    ].startswith("redis://")
    for found in (objects, profile("minimal")):
        assert "BATON_GATEWAY_CALLERS" not in environment(
            named(found, "Deployment", "baton-gateway")
        )


def test_a_sentinels_password_is_the_key_of_the_secret_that_the_values_name() -> None:
    redis = {
        "enabled": False,
        "url": "rediss+sentinel://sentinel/mymaster/0",
        "existingSecret": "mine",
        "sentinelPasswordKey": "password",
        "caSecret": "ca",
    }
    objects = render({"redis": redis})
    expected = [
        {"key": "password", "path": "password"},
        {"key": "password", "path": "sentinel-password"},
    ]
    for kind, service, variable in (
        ("StatefulSet", "quota", "BATON_QUOTA_REDIS"),
        ("Deployment", "gateway", "BATON_GATEWAY_STORE"),
    ):
        found = named(objects, kind, f"baton-{service}")
        told = environment(found)[f"{variable}_SENTINEL_PASSWORD_FILE"]
        assert told == "/etc/baton/redis/sentinel-password"
        volumes = {one["name"]: one for one in pod_of(found)["spec"]["volumes"]}
        assert volumes["redis"]["secret"]["items"] == expected


def opened(
    port: int, files: MemberFiles, password: Path | None, name: str = "redis.baton"
) -> Redis:
    """As quota and gateways come, by the chart's address."""
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={files.ca}&ssl_certfile={files.cert}"
    options = f"&ssl_keyfile={files.key}&ssl_server_name={name}"
    client = connect(url + options, 10.0, 1, PasswordFile(password) if password else None)
    assert isinstance(client, Redis)
    return client


async def is_refused(client: Redis, kind: type[Exception], why: str | None) -> None:
    with pytest.raises(kind, match=why):
        await client.ping()
    await client.aclose()


@needs.redis_with_tls
async def test_who_has_no_certificate_or_no_password_is_refused_and_so_is_another_server(
    tmp_path: Path,
) -> None:
    ours = Authority(tmp_path, "ours")
    member = {name: ours.issue(tmp_path / name, san) for name, san in NAMES.items()}
    stranger = Authority(tmp_path, "theirs").issue(tmp_path / "stranger", NAMES["quota"])
    stranger.ca.write_bytes(ours.certificate)
    shutil.copytree(tmp_path / "redis", tmp_path / "tls")
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    with serving(profile("default"), tmp_path, tls_programs()) as port:
        quota = opened(port, member["quota"], password)
        assert await quota.ping()
        await quota.aclose()
        # A stolen pod has its own certificate, and not the password.
        stolen = opened(port, member["tokenizer"], None)
        await is_refused(stolen, redis.AuthenticationError, "Authentication required")
        await is_refused(opened(port, stranger, password), redis.ConnectionError, None)
        # Nor does it play Redis: by its name a caller knows who answers.
        other = opened(port, member["quota"], password, "quota.baton")
        await is_refused(other, redis.ConnectionError, "Hostname mismatch")
        with redis.Redis(port=port, password=PASSWORD) as plain:
            with pytest.raises(redis.ConnectionError):
                plain.ping()


@needs.redis_with_tls
async def test_renewed_certificates_are_used_by_both_ends_without_a_restart(
    tmp_path: Path,
) -> None:
    ours = Authority(tmp_path, "ours")
    server, own = (ours.issue(tmp_path / name, NAMES[name]) for name in ("redis", "quota"))
    shutil.copytree(tmp_path / "redis", tmp_path / "tls")
    (tmp_path / "password").write_text(PASSWORD)
    with serving(profile("default"), tmp_path, tls_programs(), **{"sleep 30": "sleep 0.1"}) as port:
        client = opened(port, own, tmp_path / "password")
        first = await client.client_id()
        # Another authority altogether: with one end's old files nothing connects.
        moved = Authority(tmp_path, "next")
        moved.issue(tmp_path / "tls", NAMES["redis"])
        moved.issue(own.cert.parent, NAMES["quota"])
        assert await client.client_id() == first
        await client.connection_pool.disconnect()
        async with asyncio.timeout(60):
            while not await is_served(client):
                await asyncio.sleep(0.05)
        assert await client.client_id() != first
        await client.aclose()
        outdated = opened(port, server, tmp_path / "password")
        await is_refused(outdated, redis.ConnectionError, "CERTIFICATE_VERIFY_FAILED")


async def is_served(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except redis.ConnectionError:
        return False


def tls_programs() -> dict[str, str]:
    assert needs.REDIS_WITH_TLS is not None
    server = Path(needs.REDIS_WITH_TLS)
    shell = server.with_name(server.name.replace("-server", "-cli"))
    return {"valkey-server": str(server), "valkey-cli": str(shell)}
