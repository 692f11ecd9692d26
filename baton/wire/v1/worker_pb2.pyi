from baton.wire.v1 import failure_pb2 as _failure_pb2
from baton.wire.v1 import router_pb2 as _router_pb2
from baton.wire.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatewayFrame(_message.Message):
    __slots__ = ("hello", "submit", "prompt_part", "credits", "cancel", "bye", "cancel_choices", "seq", "ack")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PART_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_CHOICES_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    submit: Submit
    prompt_part: PromptPart
    credits: Credits
    cancel: Cancel
    bye: Bye
    cancel_choices: CancelChoices
    seq: int
    ack: int
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., prompt_part: _Optional[_Union[PromptPart, _Mapping]] = ..., credits: _Optional[_Union[Credits, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., cancel_choices: _Optional[_Union[CancelChoices, _Mapping]] = ..., seq: _Optional[int] = ..., ack: _Optional[int] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("protocol", "gateway_id", "link", "num_received")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    NUM_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    gateway_id: str
    link: int
    num_received: int
    def __init__(self, protocol: _Optional[int] = ..., gateway_id: _Optional[str] = ..., link: _Optional[int] = ..., num_received: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "epoch", "handle", "model_fp", "prompt_ids", "num_prompt_tokens", "block_hashes", "cache_key", "sampling", "emitted", "deadline_ms", "traceparent", "priority", "prefill_endpoint", "initial_credit_tokens", "is_suspect", "ended_choices", "pools", "is_quiet", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CREDIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    ENDED_CHOICES_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    IS_QUIET_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    handle: int
    model_fp: str
    prompt_ids: bytes
    num_prompt_tokens: int
    block_hashes: bytes
    cache_key: bytes
    sampling: _sampling_pb2.Sampling
    emitted: _containers.RepeatedCompositeFieldContainer[EmittedTokens]
    deadline_ms: int
    traceparent: str
    priority: int
    prefill_endpoint: str
    initial_credit_tokens: int
    is_suspect: bool
    ended_choices: _containers.RepeatedScalarFieldContainer[int]
    pools: bool
    is_quiet: bool
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., handle: _Optional[int] = ..., model_fp: _Optional[str] = ..., prompt_ids: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., block_hashes: _Optional[bytes] = ..., cache_key: _Optional[bytes] = ..., sampling: _Optional[_Union[_sampling_pb2.Sampling, _Mapping]] = ..., emitted: _Optional[_Iterable[_Union[EmittedTokens, _Mapping]]] = ..., deadline_ms: _Optional[int] = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., prefill_endpoint: _Optional[str] = ..., initial_credit_tokens: _Optional[int] = ..., is_suspect: _Optional[bool] = ..., ended_choices: _Optional[_Iterable[int]] = ..., pools: _Optional[bool] = ..., is_quiet: _Optional[bool] = ..., adapter: _Optional[str] = ...) -> None: ...

class EmittedTokens(_message.Message):
    __slots__ = ("choice", "token_ids")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    token_ids: bytes
    def __init__(self, choice: _Optional[int] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class PromptPart(_message.Message):
    __slots__ = ("handle", "prompt_ids", "block_hashes", "emitted")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    handle: int
    prompt_ids: bytes
    block_hashes: bytes
    emitted: _containers.RepeatedCompositeFieldContainer[EmittedTokens]
    def __init__(self, handle: _Optional[int] = ..., prompt_ids: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ..., emitted: _Optional[_Iterable[_Union[EmittedTokens, _Mapping]]] = ...) -> None: ...

class Credits(_message.Message):
    __slots__ = ("handles", "choices", "up_to_index")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    UP_TO_INDEX_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    up_to_index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., up_to_index: _Optional[_Iterable[int]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class CancelChoices(_message.Message):
    __slots__ = ("handle", "choices")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    choices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handle: _Optional[int] = ..., choices: _Optional[_Iterable[int]] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class WorkerFrame(_message.Message):
    __slots__ = ("hello", "step", "refused", "go_away", "core_died", "bye", "seq", "ack")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    CORE_DIED_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    step: Step
    refused: Refused
    go_away: GoAway
    core_died: CoreDied
    bye: Bye
    seq: int
    ack: int
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., core_died: _Optional[_Union[CoreDied, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., seq: _Optional[int] = ..., ack: _Optional[int] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("protocol", "worker_id", "boot_epoch", "model_fp", "suspect_request_ids", "num_received")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_id: str
    boot_epoch: int
    model_fp: str
    suspect_request_ids: _containers.RepeatedScalarFieldContainer[str]
    num_received: int
    def __init__(self, protocol: _Optional[int] = ..., worker_id: _Optional[str] = ..., boot_epoch: _Optional[int] = ..., model_fp: _Optional[str] = ..., suspect_request_ids: _Optional[_Iterable[str]] = ..., num_received: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step", "handles", "choices", "first_index", "counts", "ids", "side")
    STEP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    step: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedScalarFieldContainer[int]
    first_index: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    side: _containers.RepeatedCompositeFieldContainer[StepSide]
    def __init__(self, step: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[int]] = ..., first_index: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., ids: _Optional[_Iterable[int]] = ..., side: _Optional[_Iterable[_Union[StepSide, _Mapping]]] = ...) -> None: ...

class StepSide(_message.Message):
    __slots__ = ("handle", "choice", "finish", "prefill", "logprobs", "prompt_logprobs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    choice: int
    finish: Finish
    prefill: PrefillSummary
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, handle: _Optional[int] = ..., choice: _Optional[int] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., prefill: _Optional[_Union[PrefillSummary, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "num_output_tokens", "stages", "failure", "engine", "vector")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    reason: str
    num_output_tokens: int
    stages: _containers.RepeatedCompositeFieldContainer[_failure_pb2.StageTime]
    failure: _failure_pb2.Failure
    engine: _failure_pb2.EngineTime
    vector: bytes
    def __init__(self, reason: _Optional[str] = ..., num_output_tokens: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_failure_pb2.StageTime, _Mapping]]] = ..., failure: _Optional[_Union[_failure_pb2.Failure, _Mapping]] = ..., engine: _Optional[_Union[_failure_pb2.EngineTime, _Mapping]] = ..., vector: _Optional[bytes] = ...) -> None: ...

class PrefillSummary(_message.Message):
    __slots__ = ("num_cached_tokens", "num_blocks_received", "stages")
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    num_cached_tokens: int
    num_blocks_received: int
    stages: _containers.RepeatedCompositeFieldContainer[_failure_pb2.StageTime]
    def __init__(self, num_cached_tokens: _Optional[int] = ..., num_blocks_received: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_failure_pb2.StageTime, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("index", "logprob", "top_ids", "top_logprobs", "rank")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    index: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    rank: int
    def __init__(self, index: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., rank: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request_id", "epoch", "handle", "failure", "engine")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    handle: int
    failure: _failure_pb2.Failure
    engine: _failure_pb2.EngineTime
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., handle: _Optional[int] = ..., failure: _Optional[_Union[_failure_pb2.Failure, _Mapping]] = ..., engine: _Optional[_Union[_failure_pb2.EngineTime, _Mapping]] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("deadline_ms",)
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    def __init__(self, deadline_ms: _Optional[int] = ...) -> None: ...

class CoreDied(_message.Message):
    __slots__ = ("suspect_request_ids",)
    SUSPECT_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    suspect_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, suspect_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetModelFilesRequest(_message.Message):
    __slots__ = ("model_fp",)
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    model_fp: str
    def __init__(self, model_fp: _Optional[str] = ...) -> None: ...

class GetModelFilesResponse(_message.Message):
    __slots__ = ("num_bytes", "data")
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    data: bytes
    def __init__(self, num_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReportAck(_message.Message):
    __slots__ = ("seq", "protocol", "router_id", "want_snapshot", "resume")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WANT_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    seq: int
    protocol: int
    router_id: str
    want_snapshot: bool
    resume: KvPlace
    def __init__(self, seq: _Optional[int] = ..., protocol: _Optional[int] = ..., router_id: _Optional[str] = ..., want_snapshot: _Optional[bool] = ..., resume: _Optional[_Union[KvPlace, _Mapping]] = ...) -> None: ...

class KvPlace(_message.Message):
    __slots__ = ("boot_epoch", "position")
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    boot_epoch: int
    position: int
    def __init__(self, boot_epoch: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("seq", "register", "load", "kv_events", "snapshot", "digest", "draining", "adapters")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    register: Register
    load: Load
    kv_events: KvEvents
    snapshot: KvSnapshot
    digest: KvDigest
    draining: bool
    adapters: AdapterList
    def __init__(self, seq: _Optional[int] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., kv_events: _Optional[_Union[KvEvents, _Mapping]] = ..., snapshot: _Optional[_Union[KvSnapshot, _Mapping]] = ..., digest: _Optional[_Union[KvDigest, _Mapping]] = ..., draining: _Optional[bool] = ..., adapters: _Optional[_Union[AdapterList, _Mapping]] = ...) -> None: ...

class AdapterList(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_router_pb2.Adapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[_router_pb2.Adapter, _Mapping]]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("protocol", "worker_id", "boot_epoch", "role", "model_fp", "model_name", "model_revision", "kv_spec_digest", "block_size", "num_blocks", "max_model_len", "max_num_seqs", "transports", "vocab_size", "eos_token_ids", "block_bytes", "software_version", "zone", "engine", "unsupported", "stands_in")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    KV_SPEC_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    STANDS_IN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_id: str
    boot_epoch: int
    role: _router_pb2.WorkerRole
    model_fp: str
    model_name: str
    model_revision: str
    kv_spec_digest: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_bytes: int
    software_version: str
    zone: str
    engine: str
    unsupported: _containers.RepeatedScalarFieldContainer[str]
    stands_in: bool
    def __init__(self, protocol: _Optional[int] = ..., worker_id: _Optional[str] = ..., boot_epoch: _Optional[int] = ..., role: _Optional[_Union[_router_pb2.WorkerRole, str]] = ..., model_fp: _Optional[str] = ..., model_name: _Optional[str] = ..., model_revision: _Optional[str] = ..., kv_spec_digest: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., block_bytes: _Optional[int] = ..., software_version: _Optional[str] = ..., zone: _Optional[str] = ..., engine: _Optional[str] = ..., unsupported: _Optional[_Iterable[str]] = ..., stands_in: _Optional[bool] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("step_counter", "num_running", "num_waiting", "num_blocks_total", "num_blocks_free", "num_blocks_promised", "num_queued_prefill_tokens", "prefill_tokens_per_s", "decode_step_s", "handoff_bytes_per_s", "accepted_request_ids", "stalled", "chunk_tokens", "handoff_s", "far_handoffs", "totals", "step_wait_s")
    STEP_COUNTER_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_PROMISED_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_S_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_S_FIELD_NUMBER: _ClassVar[int]
    FAR_HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    STEP_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    step_counter: int
    num_running: int
    num_waiting: int
    num_blocks_total: int
    num_blocks_free: int
    num_blocks_promised: int
    num_queued_prefill_tokens: int
    prefill_tokens_per_s: float
    decode_step_s: float
    handoff_bytes_per_s: float
    accepted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    stalled: bool
    chunk_tokens: int
    handoff_s: float
    far_handoffs: _containers.RepeatedCompositeFieldContainer[FarHandoff]
    totals: _router_pb2.EngineTotals
    step_wait_s: float
    def __init__(self, step_counter: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_blocks_total: _Optional[int] = ..., num_blocks_free: _Optional[int] = ..., num_blocks_promised: _Optional[int] = ..., num_queued_prefill_tokens: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_step_s: _Optional[float] = ..., handoff_bytes_per_s: _Optional[float] = ..., accepted_request_ids: _Optional[_Iterable[str]] = ..., stalled: _Optional[bool] = ..., chunk_tokens: _Optional[int] = ..., handoff_s: _Optional[float] = ..., far_handoffs: _Optional[_Iterable[_Union[FarHandoff, _Mapping]]] = ..., totals: _Optional[_Union[_router_pb2.EngineTotals, _Mapping]] = ..., step_wait_s: _Optional[float] = ...) -> None: ...

class FarHandoff(_message.Message):
    __slots__ = ("zone", "bytes_per_s", "least_s")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEAST_S_FIELD_NUMBER: _ClassVar[int]
    zone: str
    bytes_per_s: float
    least_s: float
    def __init__(self, zone: _Optional[str] = ..., bytes_per_s: _Optional[float] = ..., least_s: _Optional[float] = ...) -> None: ...

class KvEvents(_message.Message):
    __slots__ = ("events", "position")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[KvEvent]
    position: int
    def __init__(self, events: _Optional[_Iterable[_Union[KvEvent, _Mapping]]] = ..., position: _Optional[int] = ...) -> None: ...

class KvEvent(_message.Message):
    __slots__ = ("stored", "removed", "all_cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    ALL_CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: KvStored
    removed: KvRemoved
    all_cleared: bool
    def __init__(self, stored: _Optional[_Union[KvStored, _Mapping]] = ..., removed: _Optional[_Union[KvRemoved, _Mapping]] = ..., all_cleared: _Optional[bool] = ...) -> None: ...

class KvStored(_message.Message):
    __slots__ = ("parent_hash", "hashes")
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    parent_hash: bytes
    hashes: bytes
    def __init__(self, parent_hash: _Optional[bytes] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class KvRemoved(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...

class KvSnapshot(_message.Message):
    __slots__ = ("hashes", "more", "position")
    HASHES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    more: bool
    position: int
    def __init__(self, hashes: _Optional[bytes] = ..., more: _Optional[bool] = ..., position: _Optional[int] = ...) -> None: ...

class KvDigest(_message.Message):
    __slots__ = ("num_hashes", "xor", "position")
    NUM_HASHES_FIELD_NUMBER: _ClassVar[int]
    XOR_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    num_hashes: int
    xor: bytes
    position: int
    def __init__(self, num_hashes: _Optional[int] = ..., xor: _Optional[bytes] = ..., position: _Optional[int] = ...) -> None: ...
