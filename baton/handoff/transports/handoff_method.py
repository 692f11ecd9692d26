"""The stream between two workers as a gRPC method: as generated, but with `frame_codec`."""

from typing import Any

import grpc

from baton.handoff import frame_codec
from baton.wire.v1 import handoff_pb2, handoff_pb2_grpc

_SERVICE = handoff_pb2.DESCRIPTOR.services_by_name["PrefillWorker"].full_name
_METHOD = "Handoff"


def add_to_server(
    servicer: handoff_pb2_grpc.PrefillWorkerServicer, server: grpc.aio.Server
) -> None:
    """Serve the method by `servicer`."""
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.Handoff,
        request_deserializer=handoff_pb2.DecodeFrame.FromString,
        response_serializer=frame_codec.serialize,
    )
    handlers = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
    server.add_generic_rpc_handlers((handlers,))


def start_call(channel: grpc.aio.Channel) -> Any:
    """One call of the method."""
    return channel.stream_stream(
        f"/{_SERVICE}/{_METHOD}",
        request_serializer=handoff_pb2.DecodeFrame.SerializeToString,
        response_deserializer=frame_codec.parse,
    )()
