from baton.wire.v1 import failure_pb2 as _failure_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallFrame(_message.Message):
    __slots__ = ("calls", "cancelled", "takes_parts")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    TAKES_PARTS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    cancelled: _containers.RepeatedScalarFieldContainer[int]
    takes_parts: bool
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ..., cancelled: _Optional[_Iterable[int]] = ..., takes_parts: _Optional[bool] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "method", "request", "timeout_us", "request_id", "traceparent", "has_more")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    method: str
    request: bytes
    timeout_us: int
    request_id: str
    traceparent: str
    has_more: bool
    def __init__(self, id: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout_us: _Optional[int] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., has_more: _Optional[bool] = ...) -> None: ...

class AnswerFrame(_message.Message):
    __slots__ = ("answers", "server_id", "is_leaving", "takes_parts")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    TAKES_PARTS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    server_id: str
    is_leaving: bool
    takes_parts: bool
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., server_id: _Optional[str] = ..., is_leaving: _Optional[bool] = ..., takes_parts: _Optional[bool] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "response", "failure", "has_more")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: bytes
    failure: _failure_pb2.Failure
    has_more: bool
    def __init__(self, id: _Optional[int] = ..., response: _Optional[bytes] = ..., failure: _Optional[_Union[_failure_pb2.Failure, _Mapping]] = ..., has_more: _Optional[bool] = ...) -> None: ...
