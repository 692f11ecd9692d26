"""Mutual TLS over real gRPC: who is let in, and what a renewed certificate changes."""

import os
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import grpc
import pytest

from baton.runtime import grpc_channel, grpc_server, peer_tls
from baton.runtime.callers import CALLERS
from baton.runtime.calls.call_server import CallServer
from baton.runtime.calls.shared_calls import CallTerms, SharedCalls
from baton.runtime.environment import SettingsError
from baton.runtime.peer_tls import PeerTls
from baton.runtime.shared_stream import ClientFrameStream, ServerFrameStream
from baton.system.clock import SystemClock
from baton.testing.certificates import Authority, MemberFiles
from baton.wire.call_methods import SETTLE
from baton.wire.failures import BatonError, InternalFailure, Unavailable
from baton.wire.v1 import (
    handoff_pb2,
    peers_pb2,
    quota_pb2,
    quota_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    tokenizer_pb2,
    worker_pb2,
    worker_pb2_grpc,
)


class Quota(quota_pb2_grpc.QuotaServicer):
    @grpc_server.translate_failures
    async def Calls(self, request_iterator, context):
        await CallServer({SETTLE: self.settle}).serve(ServerFrameStream(context))

    async def settle(self, request, call):
        return quota_pb2.SettleResponse()


class Router(router_pb2_grpc.RouterServicer):
    async def WatchAdmission(self, request, context):
        yield router_pb2.WatchAdmissionResponse()


class EchoWorker(worker_pb2_grpc.DecodeWorkerServicer):
    async def Serve(self, request_iterator, context):
        stream = ServerFrameStream(context)
        while (frame := await stream.read()) is not None:
            await stream.write(worker_pb2.WorkerFrame(bye=frame.bye))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> MemberFiles:
    return authority.issue(tmp_path / "member")


@asynccontextmanager
async def serving(tls: PeerTls):
    def register(target: grpc.aio.Server) -> None:
        quota_pb2_grpc.add_QuotaServicer_to_server(Quota(), target)
        router_pb2_grpc.add_RouterServicer_to_server(Router(), target)
        worker_pb2_grpc.add_DecodeWorkerServicer_to_server(EchoWorker(), target)

    server = await grpc_server.start_server("127.0.0.1:0", register, link=True, tls=tls)
    yield server
    await server.stop(0)


async def settle(port: int, tls: PeerTls | None) -> None:
    async with grpc_channel.open_channel(f"127.0.0.1:{port}", tls=tls) as channel:
        await settle_over(channel)


async def settle_over(channel: grpc.aio.Channel) -> None:
    stub = quota_pb2_grpc.QuotaStub(channel)
    calls = SharedCalls.over_grpc(stub, SystemClock(), is_balanced=False)
    await calls.call(SETTLE, quota_pb2.SettleRequest(), CallTerms(60))
    await calls.close()


async def echo(stream: ClientFrameStream, reason: str) -> str:
    await stream.write(worker_pb2.GatewayFrame(bye=worker_pb2.Bye(reason=reason)))
    return (await stream.read()).bye.reason


async def test_peers_of_one_authority_reach_each_other_in_every_kind_of_call(files) -> None:
    tls = files.tls()
    async with serving(tls) as server:
        target = f"127.0.0.1:{server.port}"
        async with grpc_channel.open_balanced_channel([target], tls=tls) as channel:
            await settle_over(channel)
            watch = router_pb2_grpc.RouterStub(channel).WatchAdmission(
                router_pb2.WatchAdmissionRequest()
            )
            assert [view async for view in watch] == [router_pb2.WatchAdmissionResponse()]
        async with grpc_channel.open_channel(target, link=True, tls=tls) as channel:
            stream = ClientFrameStream(worker_pb2_grpc.DecodeWorkerStub(channel).Serve())
            assert await echo(stream, "x") == "x"
            await stream.close()
            assert await stream.read() is None


async def test_a_server_of_another_authority_is_refused_by_name(files, tmp_path) -> None:
    stranger = Authority(tmp_path, "stranger").issue(tmp_path / "theirs").tls()
    async with serving(stranger) as server:
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await settle(server.port, files.tls())


async def test_a_server_whose_certificate_names_no_peer_is_refused(
    authority, files, tmp_path
) -> None:
    other = authority.issue(tmp_path / "other", san="DNS:grafana")
    async with serving(other.tls()) as server:
        with pytest.raises(Unavailable, match="Hostname Verification"):
            await settle(server.port, files.tls())


async def test_a_service_makes_no_call_that_is_not_its_own(authority, files, tmp_path) -> None:
    gateway = authority.issue(tmp_path / "gateway", san="DNS:baton,DNS:gateway.baton")
    worker = authority.issue(tmp_path / "worker", san="DNS:baton,DNS:worker.baton")
    async with serving(files.tls()) as server:
        await settle(server.port, gateway.tls())
        with pytest.raises(InternalFailure, match=r"worker\.baton, which may not call .*Quota"):
            await settle(server.port, worker.tls())
        target = f"127.0.0.1:{server.port}"
        async with grpc_channel.open_channel(target, link=True, tls=worker.tls()) as channel:
            stream = ClientFrameStream(worker_pb2_grpc.DecodeWorkerStub(channel).Serve())
            assert await stream.read() is None


async def test_a_stolen_pod_makes_the_calls_of_its_own_service_and_no_others(
    authority, files, tmp_path
) -> None:
    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return b"done"

    # A row is a service's, or of one of its methods.
    rows = {name: name if "/" in name else f"{name}/Any" for name in CALLERS}

    def register(target: grpc.aio.Server) -> None:
        handler = grpc.unary_unary_rpc_method_handler(answer)
        for row in rows.values():
            service, _, method = row.partition("/")
            own = grpc.method_handlers_generic_handler(service, {method: handler})
            target.add_generic_rpc_handlers([own])

    server = await grpc_server.start_server("127.0.0.1:0", register, tls=files.tls())
    target, done = f"127.0.0.1:{server.port}", set()
    # The certificates of the chart: templates/_settings.tpl.
    for caller in ("gateway", "quota", "tokenizer", "router", "worker", "edge", "envoy"):
        stolen = authority.issue(tmp_path / caller, san=f"DNS:baton,DNS:{caller}.baton")
        async with grpc_channel.open_channel(target, tls=stolen.tls()) as channel:
            for name, row in rows.items():
                code = await channel.unary_unary(f"/{row}")(b"", timeout=60).code()
                assert code in (grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED)
                if code is grpc.StatusCode.OK:
                    done.add((caller, name))
    await server.stop(0)
    assert done == {(caller, name) for name, callers in CALLERS.items() for caller in callers}


REFUSED = pytest.raises(Unavailable)


@pytest.mark.parametrize(
    ("names", "result"),
    [
        ("DNS:baton,DNS:quota.baton", nullcontext()),
        ("DNS:baton,DNS:router.baton", REFUSED),
        ("DNS:baton", REFUSED),
    ],
)
async def test_a_stolen_pod_answers_for_no_other_service(
    authority, tmp_path, names: str, result
) -> None:
    server_files = authority.issue(tmp_path / "server", san=names)
    gateway = authority.issue(tmp_path / "caller", san="DNS:baton,DNS:gateway.baton")
    own = gateway.tls(per_service=True)
    async with serving(server_files.tls(per_service=True)) as server:
        target = f"127.0.0.1:{server.port}"
        for channel in (
            grpc_channel.open_channel(target, "quota", tls=own),
            grpc_channel.open_balanced_channel([target], "quota", tls=own),
        ):
            async with channel:
                with result:
                    await settle_over(channel)


async def test_a_certificate_without_a_service_makes_no_call_where_each_has_its_own(
    authority, files, tmp_path
) -> None:
    server_files = authority.issue(tmp_path / "quota", san="DNS:baton,DNS:quota.baton")
    async with serving(server_files.tls(per_service=True)) as server:
        with pytest.raises(InternalFailure, match="names baton, which may not call"):
            await settle(server.port, files.tls())


def test_every_service_of_the_protocol_names_its_callers() -> None:
    protocol = {
        service.full_name
        for module in (handoff_pb2, peers_pb2, quota_pb2, router_pb2, tokenizer_pb2, worker_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert protocol <= CALLERS.keys()


async def test_a_caller_whose_certificate_names_no_peer_is_told_so(
    authority, files, tmp_path
) -> None:
    other = authority.issue(tmp_path / "other", san="DNS:grafana,DNS:prometheus")
    async with serving(files.tls()) as server:
        with pytest.raises(InternalFailure, match="names grafana, prometheus, not baton"):
            await settle(server.port, other.tls())
        target = f"127.0.0.1:{server.port}"
        async with grpc_channel.open_channel(target, link=True, tls=other.tls()) as channel:
            watch = router_pb2_grpc.RouterStub(channel).WatchAdmission(
                router_pb2.WatchAdmissionRequest()
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            stream = ClientFrameStream(worker_pb2_grpc.DecodeWorkerStub(channel).Serve())
            assert await stream.read() is None


async def test_a_caller_of_another_authority_or_without_tls_is_not_let_in(files, tmp_path) -> None:
    stranger = Authority(tmp_path, "stranger").issue(tmp_path / "theirs")
    # It trusts us; we do not trust it.
    stranger.ca.write_bytes(files.ca.read_bytes())
    async with serving(files.tls()) as server:
        for tls in (stranger.tls(), None):
            with pytest.raises(BatonError) as caught:
                await settle(server.port, tls)
            assert caught.value.reason == "unavailable"


async def test_a_renewed_certificate_is_used_by_new_calls_and_breaks_no_stream(
    files, tmp_path
) -> None:
    tls = files.tls()
    async with serving(tls) as server:
        target = f"127.0.0.1:{server.port}"
        async with grpc_channel.open_channel(target, tls=tls) as channel:
            stub = worker_pb2_grpc.DecodeWorkerStub(channel)
            stream = ClientFrameStream(stub.Serve())
            assert await echo(stream, "before") == "before"
            outdated = tls.material()
            # Another authority altogether: what was valid before is not any more.
            Authority(tmp_path, "next").issue(files.cert.parent)
            await settle_over(channel)
            assert await echo(ClientFrameStream(stub.Serve()), "new") == "new"
            assert await echo(stream, "still there") == "still there"
        frozen = files.tls()
        frozen.material = lambda: outdated  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await settle(server.port, frozen)


async def test_files_that_do_not_fit_each_other_leave_the_last_in_use(
    files, tmp_path, monkeypatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(peer_tls._log, "warning", lambda event, **_: warnings.append(event))
    tls = files.tls()
    kept = tls.material()
    next_files = Authority(tmp_path, "next").issue(tmp_path / "next")
    files.cert.write_bytes(next_files.cert.read_bytes())
    assert tls.material() is kept
    files.key.unlink()
    for _ in range(3):
        assert tls.material() is kept
    assert warnings == ["certificates_kept"] * 2  # once for each reason, not for each call
    files.key.write_bytes(next_files.key.read_bytes())
    renewed = tls.material()
    assert renewed.certificates == next_files.cert.read_bytes()
    assert tls.material() is renewed
    with pytest.raises(SettingsError, match="no-such-file"):
        PeerTls((files.cert, tmp_path / "no-such-file", files.ca), "baton")


_PROGRAM = """
import asyncio
from baton.runtime import process
from baton.runtime.grpc_server import start_server
async def main(running):
    server = await start_server("{listen}", lambda server: None)
    await server.stop(0)
process.run("test", main)
"""


def run_program(listen: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(listen=listen)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_process_without_certificates_is_not_reached_from_other_machines() -> None:
    done = run_program("0.0.0.0:0")
    assert done.returncode == 2
    assert "BATON_TLS_PLAINTEXT=1" in done.stderr.splitlines()[-1]


def test_a_process_with_certificates_serves_every_address(files) -> None:
    done = run_program("0.0.0.0:0", **files.environment())
    assert done.returncode == 0, done.stderr
