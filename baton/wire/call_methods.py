"""The calls that ride on shared streams: the name and the messages of each.

protos/baton/wire/v1/calls.proto has the stream.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from baton.wire.v1 import quota_pb2, router_pb2, tokenizer_pb2

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True, eq=False)
class CallMethod(Generic[Request, Response]):
    """One method: its name on the wire, and the kinds of its messages."""

    name: str
    request: type[Request]
    response: type[Response]


AUTHENTICATE = CallMethod(
    "Authenticate", quota_pb2.AuthenticateRequest, quota_pb2.AuthenticateResponse
)
RESERVE = CallMethod("Reserve", quota_pb2.ReserveRequest, quota_pb2.ReserveResponse)
SETTLE = CallMethod("Settle", quota_pb2.SettleRequest, quota_pb2.SettleResponse)
ENCODE = CallMethod("Encode", tokenizer_pb2.EncodeRequest, tokenizer_pb2.EncodeResponse)
PICK = CallMethod("Pick", router_pb2.PickRequest, router_pb2.PickResponse)
CANCEL = CallMethod("Cancel", router_pb2.CancelRequest, router_pb2.CancelResponse)
