from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowRequest(_message.Message):
    __slots__ = ("protocol", "router_id")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    router_id: str
    def __init__(self, protocol: _Optional[int] = ..., router_id: _Optional[str] = ...) -> None: ...

class PeerNews(_message.Message):
    __slots__ = ("hello", "events", "lines")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    hello: PeerHello
    events: _containers.RepeatedCompositeFieldContainer[PeerEvent]
    lines: PeerLines
    def __init__(self, hello: _Optional[_Union[PeerHello, _Mapping]] = ..., events: _Optional[_Iterable[_Union[PeerEvent, _Mapping]]] = ..., lines: _Optional[_Union[PeerLines, _Mapping]] = ...) -> None: ...

class PeerHello(_message.Message):
    __slots__ = ("protocol", "router_id")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    router_id: str
    def __init__(self, protocol: _Optional[int] = ..., router_id: _Optional[str] = ...) -> None: ...

class PeerEvent(_message.Message):
    __slots__ = ("age_ms", "placed", "ended_request_id", "failed", "suspect", "harmless_fingerprint")
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    ENDED_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    HARMLESS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    placed: Placements
    ended_request_id: str
    failed: FailedAttempt
    suspect: Suspect
    harmless_fingerprint: bytes
    def __init__(self, age_ms: _Optional[int] = ..., placed: _Optional[_Union[Placements, _Mapping]] = ..., ended_request_id: _Optional[str] = ..., failed: _Optional[_Union[FailedAttempt, _Mapping]] = ..., suspect: _Optional[_Union[Suspect, _Mapping]] = ..., harmless_fingerprint: _Optional[bytes] = ...) -> None: ...

class Placements(_message.Message):
    __slots__ = ("names", "request_ids", "decode_workers", "prompt_workers", "num_sequences", "num_blocks", "num_prefill_tokens", "num_marks", "expected_s", "marks", "services", "sessions", "num_first")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_MARKS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_FIRST_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    decode_workers: _containers.RepeatedScalarFieldContainer[int]
    prompt_workers: _containers.RepeatedScalarFieldContainer[int]
    num_sequences: _containers.RepeatedScalarFieldContainer[int]
    num_blocks: _containers.RepeatedScalarFieldContainer[int]
    num_prefill_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_marks: _containers.RepeatedScalarFieldContainer[int]
    expected_s: _containers.RepeatedScalarFieldContainer[float]
    marks: _containers.RepeatedScalarFieldContainer[int]
    services: _containers.RepeatedCompositeFieldContainer[TenantService]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionWorkers]
    num_first: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., request_ids: _Optional[_Iterable[str]] = ..., decode_workers: _Optional[_Iterable[int]] = ..., prompt_workers: _Optional[_Iterable[int]] = ..., num_sequences: _Optional[_Iterable[int]] = ..., num_blocks: _Optional[_Iterable[int]] = ..., num_prefill_tokens: _Optional[_Iterable[int]] = ..., num_marks: _Optional[_Iterable[int]] = ..., expected_s: _Optional[_Iterable[float]] = ..., marks: _Optional[_Iterable[int]] = ..., services: _Optional[_Iterable[_Union[TenantService, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionWorkers, _Mapping]]] = ..., num_first: _Optional[int] = ...) -> None: ...

class TenantService(_message.Message):
    __slots__ = ("model", "tenant", "priority", "service_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    model: int
    tenant: int
    priority: int
    service_s: float
    def __init__(self, model: _Optional[int] = ..., tenant: _Optional[int] = ..., priority: _Optional[int] = ..., service_s: _Optional[float] = ...) -> None: ...

class SessionWorkers(_message.Message):
    __slots__ = ("session", "model", "workers")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    model: int
    workers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[bytes] = ..., model: _Optional[int] = ..., workers: _Optional[_Iterable[int]] = ...) -> None: ...

class FailedAttempt(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class Suspect(_message.Message):
    __slots__ = ("fingerprint", "num_deaths")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_DEATHS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    num_deaths: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., num_deaths: _Optional[int] = ...) -> None: ...

class PeerLines(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[PeerLine]
    def __init__(self, lines: _Optional[_Iterable[_Union[PeerLine, _Mapping]]] = ...) -> None: ...

class PeerLine(_message.Message):
    __slots__ = ("model_fp", "priority", "tenants", "reserved_worker_id")
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    model_fp: str
    priority: int
    tenants: _containers.RepeatedCompositeFieldContainer[WaitingTenant]
    reserved_worker_id: str
    def __init__(self, model_fp: _Optional[str] = ..., priority: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[WaitingTenant, _Mapping]]] = ..., reserved_worker_id: _Optional[str] = ...) -> None: ...

class WaitingTenant(_message.Message):
    __slots__ = ("tenant", "weight")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    weight: float
    def __init__(self, tenant: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...
