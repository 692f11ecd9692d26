from baton.wire.v1 import calls_pb2 as _calls_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PickRequest(_message.Message):
    __slots__ = ("request_id", "model_fp", "block_hashes", "num_prompt_tokens", "expected_output_tokens", "tenant", "priority", "poison_fingerprint", "exclude_worker_ids", "num_choices", "local_prefill", "num_deaths", "has_failed", "harmless_fingerprints", "quarantined", "has_begun", "weight", "session", "needs", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POISON_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PREFILL_FIELD_NUMBER: _ClassVar[int]
    NUM_DEATHS_FIELD_NUMBER: _ClassVar[int]
    HAS_FAILED_FIELD_NUMBER: _ClassVar[int]
    HARMLESS_FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    HAS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model_fp: str
    block_hashes: bytes
    num_prompt_tokens: int
    expected_output_tokens: int
    tenant: str
    priority: int
    poison_fingerprint: bytes
    exclude_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    num_choices: int
    local_prefill: bool
    num_deaths: int
    has_failed: bool
    harmless_fingerprints: _containers.RepeatedScalarFieldContainer[bytes]
    quarantined: _containers.RepeatedCompositeFieldContainer[Quarantined]
    has_begun: bool
    weight: float
    session: bytes
    needs: _containers.RepeatedScalarFieldContainer[str]
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., model_fp: _Optional[str] = ..., block_hashes: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., expected_output_tokens: _Optional[int] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., poison_fingerprint: _Optional[bytes] = ..., exclude_worker_ids: _Optional[_Iterable[str]] = ..., num_choices: _Optional[int] = ..., local_prefill: _Optional[bool] = ..., num_deaths: _Optional[int] = ..., has_failed: _Optional[bool] = ..., harmless_fingerprints: _Optional[_Iterable[bytes]] = ..., quarantined: _Optional[_Iterable[_Union[Quarantined, _Mapping]]] = ..., has_begun: _Optional[bool] = ..., weight: _Optional[float] = ..., session: _Optional[bytes] = ..., needs: _Optional[_Iterable[str]] = ..., adapter: _Optional[str] = ...) -> None: ...

class Quarantined(_message.Message):
    __slots__ = ("fingerprint", "left_s", "software_version")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    left_s: float
    software_version: str
    def __init__(self, fingerprint: _Optional[bytes] = ..., left_s: _Optional[float] = ..., software_version: _Optional[str] = ...) -> None: ...

class PickResponse(_message.Message):
    __slots__ = ("decode", "prefill", "queue_us", "predicted_cached_tokens", "is_suspect", "reasons", "is_quiet")
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    IS_QUIET_FIELD_NUMBER: _ClassVar[int]
    decode: WorkerEndpoint
    prefill: WorkerEndpoint
    queue_us: int
    predicted_cached_tokens: int
    is_suspect: bool
    reasons: PickReasons
    is_quiet: bool
    def __init__(self, decode: _Optional[_Union[WorkerEndpoint, _Mapping]] = ..., prefill: _Optional[_Union[WorkerEndpoint, _Mapping]] = ..., queue_us: _Optional[int] = ..., predicted_cached_tokens: _Optional[int] = ..., is_suspect: _Optional[bool] = ..., reasons: _Optional[_Union[PickReasons, _Mapping]] = ..., is_quiet: _Optional[bool] = ...) -> None: ...

class PickReasons(_message.Message):
    __slots__ = ("choices", "left_out", "num_omitted", "num_prompt_tokens", "remark")
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_OMITTED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedCompositeFieldContainer[PickChoice]
    left_out: _containers.RepeatedCompositeFieldContainer[LeftOutWorker]
    num_omitted: int
    num_prompt_tokens: int
    remark: str
    def __init__(self, choices: _Optional[_Iterable[_Union[PickChoice, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[LeftOutWorker, _Mapping]]] = ..., num_omitted: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., remark: _Optional[str] = ...) -> None: ...

class PickChoice(_message.Message):
    __slots__ = ("decode_worker_id", "prefill_worker_id", "num_cached_tokens", "is_measured", "wait_s", "prefill_s", "handoff_s", "steps_s", "itl_s", "streams_s", "step_s", "zone_s", "decode_zone", "prefill_zone")
    DECODE_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_S_FIELD_NUMBER: _ClassVar[int]
    ITL_S_FIELD_NUMBER: _ClassVar[int]
    STREAMS_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    ZONE_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_ZONE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ZONE_FIELD_NUMBER: _ClassVar[int]
    decode_worker_id: str
    prefill_worker_id: str
    num_cached_tokens: int
    is_measured: bool
    wait_s: float
    prefill_s: float
    handoff_s: float
    steps_s: float
    itl_s: float
    streams_s: float
    step_s: float
    zone_s: float
    decode_zone: str
    prefill_zone: str
    def __init__(self, decode_worker_id: _Optional[str] = ..., prefill_worker_id: _Optional[str] = ..., num_cached_tokens: _Optional[int] = ..., is_measured: _Optional[bool] = ..., wait_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., handoff_s: _Optional[float] = ..., steps_s: _Optional[float] = ..., itl_s: _Optional[float] = ..., streams_s: _Optional[float] = ..., step_s: _Optional[float] = ..., zone_s: _Optional[float] = ..., decode_zone: _Optional[str] = ..., prefill_zone: _Optional[str] = ...) -> None: ...

class LeftOutWorker(_message.Message):
    __slots__ = ("worker_id", "reason")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    reason: str
    def __init__(self, worker_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class WorkerEndpoint(_message.Message):
    __slots__ = ("worker_id", "endpoint", "boot_epoch")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    endpoint: str
    boot_epoch: int
    def __init__(self, worker_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., boot_epoch: _Optional[int] = ...) -> None: ...

class WatchAdmissionRequest(_message.Message):
    __slots__ = ("takes_deltas",)
    TAKES_DELTAS_FIELD_NUMBER: _ClassVar[int]
    takes_deltas: bool
    def __init__(self, takes_deltas: _Optional[bool] = ...) -> None: ...

class WatchAdmissionResponse(_message.Message):
    __slots__ = ("models", "quarantined", "software_version", "zone", "number", "is_delta", "cancelled")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_DELTA_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    quarantined: _containers.RepeatedCompositeFieldContainer[Quarantined]
    software_version: str
    zone: str
    number: int
    is_delta: bool
    cancelled: _containers.RepeatedCompositeFieldContainer[CancelRequest]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., quarantined: _Optional[_Iterable[_Union[Quarantined, _Mapping]]] = ..., software_version: _Optional[str] = ..., zone: _Optional[str] = ..., number: _Optional[int] = ..., is_delta: _Optional[bool] = ..., cancelled: _Optional[_Iterable[_Union[CancelRequest, _Mapping]]] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model_fp", "name", "revision", "block_size", "max_model_len", "vocab_size", "eos_token_ids", "workers", "num_queued", "predicted_wait_s", "prefill_tokens_per_s", "engines", "unsupported")
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    model_fp: str
    name: str
    revision: str
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    num_queued: int
    predicted_wait_s: _containers.RepeatedScalarFieldContainer[float]
    prefill_tokens_per_s: float
    engines: _containers.RepeatedScalarFieldContainer[str]
    unsupported: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model_fp: _Optional[str] = ..., name: _Optional[str] = ..., revision: _Optional[str] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., num_queued: _Optional[int] = ..., predicted_wait_s: _Optional[_Iterable[float]] = ..., prefill_tokens_per_s: _Optional[float] = ..., engines: _Optional[_Iterable[str]] = ..., unsupported: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("worker_id", "endpoint", "role", "ready", "draining", "num_running", "num_waiting", "kv_usage", "ejected", "totals", "adapters", "stands_in")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    EJECTED_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    STANDS_IN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    endpoint: str
    role: WorkerRole
    ready: bool
    draining: bool
    num_running: int
    num_waiting: int
    kv_usage: float
    ejected: bool
    totals: EngineTotals
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    stands_in: bool
    def __init__(self, worker_id: _Optional[str] = ..., endpoint: _Optional[str] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., ready: _Optional[bool] = ..., draining: _Optional[bool] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., ejected: _Optional[bool] = ..., totals: _Optional[_Union[EngineTotals, _Mapping]] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., stands_in: _Optional[bool] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class EngineTotals(_message.Message):
    __slots__ = ("boot_epoch", "uptime_us", "busy_us", "unbilled_us")
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_US_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    UNBILLED_US_FIELD_NUMBER: _ClassVar[int]
    boot_epoch: int
    uptime_us: int
    busy_us: int
    unbilled_us: int
    def __init__(self, boot_epoch: _Optional[int] = ..., uptime_us: _Optional[int] = ..., busy_us: _Optional[int] = ..., unbilled_us: _Optional[int] = ...) -> None: ...
