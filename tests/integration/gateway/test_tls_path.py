"""A whole request under mutual TLS: the gateway and everything that it dials have their identity
from the variables that a deployment sets, and nothing is reached without one."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.runtime import grpc_channel, peer_tls
from baton.runtime.grpc_server import start_server
from baton.runtime.peer_tls import PeerTls
from baton.testing.certificates import Authority, MemberFiles
from tests.integration.gateway.gateway_stack import Stack, running_stack, until_ready
from tests.integration.gateway.test_gateway_openai_client import MESSAGES
from tests.unit.gateway.fakes import KEY

ROOT = Path(__file__).parents[3]
# Who makes channels and servers, and so decides about TLS.
MAKERS = {"baton/runtime/grpc_channel.py", "baton/runtime/renewed_channel.py",
          "baton/runtime/grpc_server.py"}  # fmt: skip
MADE = re.compile(r"secure_channel\(|\baio\.server\(|\bgrpc\.server\(")


@pytest.fixture
def files(tmp_path: Path) -> MemberFiles:
    return Authority(tmp_path, "ours").issue(tmp_path / "member")


@pytest.fixture
def process_identity(files: MemberFiles, monkeypatch: pytest.MonkeyPatch):
    for name, value in files.environment().items():
        monkeypatch.setenv(name, value)
    peer_tls.of_process.cache_clear()
    yield
    peer_tls.of_process.cache_clear()


@pytest.fixture
async def stack(process_identity: None, tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path) as running:
        await until_ready(running)
        yield running


async def streamed(stack: Stack) -> str:
    async with openai.AsyncOpenAI(
        base_url=f"{stack.root}/v1", api_key=KEY, max_retries=0
    ) as client:
        events = await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
        return "".join([event.choices[0].delta.content or "" async for event in events])


async def health(address: str, channel: grpc.aio.Channel) -> int:
    async with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)).status


def stranger(files: MemberFiles, folder: Path) -> PeerTls:
    """Whom another authority vouches for, and who trusts ours."""
    theirs = Authority(folder, "stranger").issue(folder / "theirs")
    theirs.ca.write_bytes(files.ca.read_bytes())
    return theirs.tls()


async def test_a_request_goes_its_whole_way_and_strangers_go_none_of_it(
    stack: Stack, files: MemberFiles, tmp_path: Path
) -> None:
    assert await streamed(stack) == "Hello there."
    unknown = stranger(files, tmp_path)
    assert len(stack.addresses) == 5
    for address in stack.addresses:
        channel = grpc_channel.open_channel(address)
        assert await health(address, channel) == health_pb2.HealthCheckResponse.SERVING
        authorities = grpc.ssl_channel_credentials(files.ca.read_bytes())
        named = [("grpc.ssl_target_name_override", "baton")]
        for refused in (
            grpc.aio.insecure_channel(address),
            grpc.aio.secure_channel(address, authorities, options=named),
            grpc_channel.open_channel(address, tls=unknown),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health(address, refused)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_requests_go_on_when_every_certificate_is_renewed(
    stack: Stack, files: MemberFiles, tmp_path: Path
) -> None:
    assert await streamed(stack) == "Hello there."
    outdated = stranger(files, tmp_path)
    Authority(tmp_path, "next").issue(files.cert.parent)
    assert await streamed(stack) == "Hello there."
    for address in stack.addresses:
        assert await health(address, grpc_channel.open_channel(address)) == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await health(address, grpc_channel.open_channel(address, tls=outdated))


async def test_without_certificates_only_this_machine_is_served() -> None:
    with pytest.raises(peer_tls.SettingsError, match="is reached from other machines"):
        await start_server("0.0.0.0:0", lambda server: None)


def test_nobody_else_opens_channels_or_servers() -> None:
    makers = {
        str(path.relative_to(ROOT))
        for folder in ("baton", "services")
        for path in (ROOT / folder).rglob("*.py")
        if "testing" not in path.parts and MADE.search(path.read_text())
    }
    assert makers == MAKERS
