from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Failure(_message.Message):
    __slots__ = ("reason", "message", "param", "retry_after_ms", "limits", "is_suspect")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    param: str
    retry_after_ms: int
    limits: LimitState
    is_suspect: bool
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., limits: _Optional[_Union[LimitState, _Mapping]] = ..., is_suspect: _Optional[bool] = ...) -> None: ...

class LimitState(_message.Message):
    __slots__ = ("limit_requests", "remaining_requests", "reset_requests_ms", "limit_tokens", "remaining_tokens", "reset_tokens_ms", "requests_scope", "tokens_scope", "accounts")
    LIMIT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RESET_REQUESTS_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESET_TOKENS_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_SCOPE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    limit_requests: int
    remaining_requests: int
    reset_requests_ms: int
    limit_tokens: int
    remaining_tokens: int
    reset_tokens_ms: int
    requests_scope: str
    tokens_scope: str
    accounts: _containers.RepeatedCompositeFieldContainer[AccountState]
    def __init__(self, limit_requests: _Optional[int] = ..., remaining_requests: _Optional[int] = ..., reset_requests_ms: _Optional[int] = ..., limit_tokens: _Optional[int] = ..., remaining_tokens: _Optional[int] = ..., reset_tokens_ms: _Optional[int] = ..., requests_scope: _Optional[str] = ..., tokens_scope: _Optional[str] = ..., accounts: _Optional[_Iterable[_Union[AccountState, _Mapping]]] = ...) -> None: ...

class AccountState(_message.Message):
    __slots__ = ("owner", "model", "remaining_requests", "remaining_tokens", "remaining_budget", "remaining_cost")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REMAINING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    REMAINING_COST_FIELD_NUMBER: _ClassVar[int]
    owner: str
    model: str
    remaining_requests: int
    remaining_tokens: int
    remaining_budget: int
    remaining_cost: int
    def __init__(self, owner: _Optional[str] = ..., model: _Optional[str] = ..., remaining_requests: _Optional[int] = ..., remaining_tokens: _Optional[int] = ..., remaining_budget: _Optional[int] = ..., remaining_cost: _Optional[int] = ...) -> None: ...

class EngineTime(_message.Message):
    __slots__ = ("prefill_us", "decode_us", "kv_byte_ms", "preempted_us", "migrated_us", "cancelled_us")
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    KV_BYTE_MS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_US_FIELD_NUMBER: _ClassVar[int]
    MIGRATED_US_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_US_FIELD_NUMBER: _ClassVar[int]
    prefill_us: int
    decode_us: int
    kv_byte_ms: int
    preempted_us: int
    migrated_us: int
    cancelled_us: int
    def __init__(self, prefill_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., kv_byte_ms: _Optional[int] = ..., preempted_us: _Optional[int] = ..., migrated_us: _Optional[int] = ..., cancelled_us: _Optional[int] = ...) -> None: ...

class StageTime(_message.Message):
    __slots__ = ("name", "duration_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    duration_us: int
    def __init__(self, name: _Optional[str] = ..., duration_us: _Optional[int] = ...) -> None: ...
