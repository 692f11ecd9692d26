"""A name that stands for another address than before, as that of a restarted pod does."""

import asyncio
import contextlib
import struct

import pytest

from baton.runtime import grpc_channel, grpc_server
from baton.runtime.grpc_channel import call
from baton.wire.failures import Unavailable
from baton.wire.v1 import tokenizer_pb2, tokenizer_pb2_grpc

# gRPC by itself asks for a name every 30 s at most.
PATIENCE_S = 20
ADDRESS_RECORD = 1


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with the same one."""

    def __init__(self, address: str) -> None:
        self.address = address

    def connection_made(self, transport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        (kind,) = struct.unpack_from(">H", data, end - 4)
        found = [bytes(map(int, self.address.split(".")))] if kind == ADDRESS_RECORD else []
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(found), 0, 0)
        answers = (struct.pack(">HHHIH", 0xC00C, 1, 1, 1, len(one)) + one for one in found)
        self._transport.sendto(head + data[12:end] + b"".join(answers), sender)


class Tokenizer(tokenizer_pb2_grpc.TokenizerServicer):
    async def ListModels(self, request, context):
        return tokenizer_pb2.ListModelsResponse()


def register(server) -> None:
    tokenizer_pb2_grpc.add_TokenizerServicer_to_server(Tokenizer(), server)


@pytest.mark.parametrize("is_balanced", [False, True])
async def test_a_name_is_asked_again_as_soon_as_its_address_is_gone(is_balanced: bool) -> None:
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(
        lambda: NameServer("127.0.0.1"), local_addr=("127.0.0.1", 0)
    )
    dns_port = transport.get_extra_info("sockname")[1]
    old = await grpc_server.start_server("127.0.0.1:0", register)
    new = await grpc_server.start_server(f"127.0.0.2:{old.port}", register)
    target = f"dns://127.0.0.1:{dns_port}/tokenizer.test:{old.port}"
    opened = grpc_channel.open_balanced_channel([target]) if is_balanced else None
    try:
        async with opened or grpc_channel.open_channel(target) as channel:
            stub = tokenizer_pb2_grpc.TokenizerStub(channel)
            await call(stub.ListModels, tokenizer_pb2.ListModelsRequest(), deadline_s=PATIENCE_S)
            names.address = "127.0.0.2"
            await old.stop(0)
            async with asyncio.timeout(PATIENCE_S):
                await until_answered(stub)
    finally:
        await old.stop(0)
        await new.stop(0)
        transport.close()


async def until_answered(stub: tokenizer_pb2_grpc.TokenizerStub) -> None:
    """Call until a server answers: a call that is sent as its connection breaks fails."""
    while True:
        with contextlib.suppress(Unavailable):
            await call(stub.ListModels, tokenizer_pb2.ListModelsRequest(), deadline_s=PATIENCE_S)
            return
        await asyncio.sleep(0.02)
