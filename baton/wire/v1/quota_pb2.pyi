from baton.wire.v1 import calls_pb2 as _calls_pb2
from baton.wire.v1 import failure_pb2 as _failure_pb2
from baton.wire.v1 import router_pb2 as _router_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BudgetPeriod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUDGET_PERIOD_UNSPECIFIED: _ClassVar[BudgetPeriod]
    BUDGET_PERIOD_DAY: _ClassVar[BudgetPeriod]
    BUDGET_PERIOD_MONTH: _ClassVar[BudgetPeriod]
BUDGET_PERIOD_UNSPECIFIED: BudgetPeriod
BUDGET_PERIOD_DAY: BudgetPeriod
BUDGET_PERIOD_MONTH: BudgetPeriod

class AuthenticateRequest(_message.Message):
    __slots__ = ("key_digest",)
    KEY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    key_digest: bytes
    def __init__(self, key_digest: _Optional[bytes] = ...) -> None: ...

class AuthenticateResponse(_message.Message):
    __slots__ = ("tenant", "key_id", "limits", "allowed_models", "priority", "fresh_for_s", "weight", "more_limits", "is_from_files")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_MODELS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FRESH_FOR_S_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MORE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    IS_FROM_FILES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    key_id: str
    limits: Limits
    allowed_models: _containers.RepeatedScalarFieldContainer[str]
    priority: int
    fresh_for_s: float
    weight: float
    more_limits: _containers.RepeatedCompositeFieldContainer[MoreLimits]
    is_from_files: bool
    def __init__(self, tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., allowed_models: _Optional[_Iterable[str]] = ..., priority: _Optional[int] = ..., fresh_for_s: _Optional[float] = ..., weight: _Optional[float] = ..., more_limits: _Optional[_Iterable[_Union[MoreLimits, _Mapping]]] = ..., is_from_files: _Optional[bool] = ...) -> None: ...

class MoreLimits(_message.Message):
    __slots__ = ("owner", "model", "limits")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    model: str
    limits: Limits
    def __init__(self, owner: _Optional[str] = ..., model: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("requests_per_minute", "tokens_per_minute", "concurrency", "budget_tokens", "budget_period", "hard_budget", "budget_cost", "cost_period")
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_PERIOD_FIELD_NUMBER: _ClassVar[int]
    HARD_BUDGET_FIELD_NUMBER: _ClassVar[int]
    BUDGET_COST_FIELD_NUMBER: _ClassVar[int]
    COST_PERIOD_FIELD_NUMBER: _ClassVar[int]
    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int
    budget_tokens: int
    budget_period: BudgetPeriod
    hard_budget: bool
    budget_cost: int
    cost_period: BudgetPeriod
    def __init__(self, requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ..., concurrency: _Optional[int] = ..., budget_tokens: _Optional[int] = ..., budget_period: _Optional[_Union[BudgetPeriod, str]] = ..., hard_budget: _Optional[bool] = ..., budget_cost: _Optional[int] = ..., cost_period: _Optional[_Union[BudgetPeriod, str]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "key_id", "model", "num_prompt_tokens", "num_output_tokens", "min_output_tokens", "min_prompt_tokens", "replaces_estimate")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPLACES_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    key_id: str
    model: str
    num_prompt_tokens: int
    num_output_tokens: int
    min_output_tokens: int
    min_prompt_tokens: int
    replaces_estimate: bool
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., model: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., min_output_tokens: _Optional[int] = ..., min_prompt_tokens: _Optional[int] = ..., replaces_estimate: _Optional[bool] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("granted_output_tokens", "expires_in_ms", "limits", "num_prompt_tokens", "price")
    GRANTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    granted_output_tokens: int
    expires_in_ms: int
    limits: _failure_pb2.LimitState
    num_prompt_tokens: int
    price: TokenPrice
    def __init__(self, granted_output_tokens: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., limits: _Optional[_Union[_failure_pb2.LimitState, _Mapping]] = ..., num_prompt_tokens: _Optional[int] = ..., price: _Optional[_Union[TokenPrice, _Mapping]] = ...) -> None: ...

class TokenPrice(_message.Message):
    __slots__ = ("prompt", "output")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    prompt: int
    output: int
    def __init__(self, prompt: _Optional[int] = ..., output: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("leases", "gateway_id", "workers")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseRenewal]
    gateway_id: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerTotals]
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseRenewal, _Mapping]]] = ..., gateway_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerTotals, _Mapping]]] = ...) -> None: ...

class WorkerTotals(_message.Message):
    __slots__ = ("worker_id", "model", "role", "totals")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model: str
    role: _router_pb2.WorkerRole
    totals: _router_pb2.EngineTotals
    def __init__(self, worker_id: _Optional[str] = ..., model: _Optional[str] = ..., role: _Optional[_Union[_router_pb2.WorkerRole, str]] = ..., totals: _Optional[_Union[_router_pb2.EngineTotals, _Mapping]] = ...) -> None: ...

class LeaseRenewal(_message.Message):
    __slots__ = ("request_id", "tenant", "used_output_tokens", "wanted_output_tokens", "produced_output_tokens", "key_id", "model", "num_prompt_tokens", "granted_output_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WANTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    used_output_tokens: int
    wanted_output_tokens: int
    produced_output_tokens: int
    key_id: str
    model: str
    num_prompt_tokens: int
    granted_output_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., used_output_tokens: _Optional[int] = ..., wanted_output_tokens: _Optional[int] = ..., produced_output_tokens: _Optional[int] = ..., key_id: _Optional[str] = ..., model: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., granted_output_tokens: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("leases", "num_gateways")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NUM_GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseState]
    num_gateways: int
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseState, _Mapping]]] = ..., num_gateways: _Optional[int] = ...) -> None: ...

class LeaseState(_message.Message):
    __slots__ = ("request_id", "granted_output_tokens", "expires_in_ms", "state", "retry_after_ms", "spent_limit")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LeaseState.State]
        STATE_HELD: _ClassVar[LeaseState.State]
        STATE_REFUSED: _ClassVar[LeaseState.State]
        STATE_LOST: _ClassVar[LeaseState.State]
        STATE_SHORT: _ClassVar[LeaseState.State]
    STATE_UNSPECIFIED: LeaseState.State
    STATE_HELD: LeaseState.State
    STATE_REFUSED: LeaseState.State
    STATE_LOST: LeaseState.State
    STATE_SHORT: LeaseState.State
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GRANTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    SPENT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    granted_output_tokens: int
    expires_in_ms: int
    state: LeaseState.State
    retry_after_ms: int
    spent_limit: str
    def __init__(self, request_id: _Optional[str] = ..., granted_output_tokens: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., state: _Optional[_Union[LeaseState.State, str]] = ..., retry_after_ms: _Optional[int] = ..., spent_limit: _Optional[str] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: UsageRecord
    def __init__(self, usage: _Optional[_Union[UsageRecord, _Mapping]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("repeated_settle",)
    REPEATED_SETTLE_FIELD_NUMBER: _ClassVar[int]
    repeated_settle: bool
    def __init__(self, repeated_settle: _Optional[bool] = ...) -> None: ...

class UsageRecord(_message.Message):
    __slots__ = ("request_id", "tenant", "key_id", "model", "model_fp", "started_unix_ms", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "num_wasted_tokens", "finish_reason", "stages", "wall_us", "endpoint", "num_attempts", "provisional", "engine")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WASTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    NUM_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PROVISIONAL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    key_id: str
    model: str
    model_fp: str
    started_unix_ms: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_wasted_tokens: int
    finish_reason: str
    stages: _containers.RepeatedCompositeFieldContainer[_failure_pb2.StageTime]
    wall_us: int
    endpoint: str
    num_attempts: int
    provisional: bool
    engine: _failure_pb2.EngineTime
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., key_id: _Optional[str] = ..., model: _Optional[str] = ..., model_fp: _Optional[str] = ..., started_unix_ms: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_wasted_tokens: _Optional[int] = ..., finish_reason: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[_failure_pb2.StageTime, _Mapping]]] = ..., wall_us: _Optional[int] = ..., endpoint: _Optional[str] = ..., num_attempts: _Optional[int] = ..., provisional: _Optional[bool] = ..., engine: _Optional[_Union[_failure_pb2.EngineTime, _Mapping]] = ...) -> None: ...
