from baton.wire.v1 import failure_pb2 as _failure_pb2
from baton.wire.v1 import sampling_pb2 as _sampling_pb2
from baton.wire.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeFrame(_message.Message):
    __slots__ = ("hello", "prefill", "prefill_part", "credit", "renew", "done", "abort", "bye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_PART_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    hello: DecodeHello
    prefill: Prefill
    prefill_part: PrefillPart
    credit: TransferCredit
    renew: RenewTransfers
    done: TransferDone
    abort: TransferAbort
    bye: _worker_pb2.Bye
    def __init__(self, hello: _Optional[_Union[DecodeHello, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., prefill_part: _Optional[_Union[PrefillPart, _Mapping]] = ..., credit: _Optional[_Union[TransferCredit, _Mapping]] = ..., renew: _Optional[_Union[RenewTransfers, _Mapping]] = ..., done: _Optional[_Union[TransferDone, _Mapping]] = ..., abort: _Optional[_Union[TransferAbort, _Mapping]] = ..., bye: _Optional[_Union[_worker_pb2.Bye, _Mapping]] = ...) -> None: ...

class PrefillFrame(_message.Message):
    __slots__ = ("hello", "accepted", "refused", "first_tokens", "blocks", "commit", "abort", "bye", "spent")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    hello: PrefillHello
    accepted: Accepted
    refused: TransferRefused
    first_tokens: FirstTokens
    blocks: Blocks
    commit: Commit
    abort: TransferAbort
    bye: _worker_pb2.Bye
    spent: Spent
    def __init__(self, hello: _Optional[_Union[PrefillHello, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., refused: _Optional[_Union[TransferRefused, _Mapping]] = ..., first_tokens: _Optional[_Union[FirstTokens, _Mapping]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[TransferAbort, _Mapping]] = ..., bye: _Optional[_Union[_worker_pb2.Bye, _Mapping]] = ..., spent: _Optional[_Union[Spent, _Mapping]] = ...) -> None: ...

class KvSpec(_message.Message):
    __slots__ = ("block_size", "row_bytes", "layers")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    row_bytes: int
    layers: _containers.RepeatedCompositeFieldContainer[KvLayer]
    def __init__(self, block_size: _Optional[int] = ..., row_bytes: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[KvLayer, _Mapping]]] = ...) -> None: ...

class KvLayer(_message.Message):
    __slots__ = ("offset", "num_kv_heads", "k_dim", "v_dim", "dtype", "kind")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    K_DIM_FIELD_NUMBER: _ClassVar[int]
    V_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    offset: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    dtype: str
    kind: str
    def __init__(self, offset: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., k_dim: _Optional[int] = ..., v_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class DecodeHello(_message.Message):
    __slots__ = ("protocol", "worker_id", "boot_epoch", "model_fp", "kv_spec", "tp_rank", "tp_size", "transports", "shm_nonce", "credit_bytes", "takes_stripes")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    KV_SPEC_FIELD_NUMBER: _ClassVar[int]
    TP_RANK_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    SHM_NONCE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKES_STRIPES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_id: str
    boot_epoch: int
    model_fp: str
    kv_spec: KvSpec
    tp_rank: int
    tp_size: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    shm_nonce: str
    credit_bytes: int
    takes_stripes: bool
    def __init__(self, protocol: _Optional[int] = ..., worker_id: _Optional[str] = ..., boot_epoch: _Optional[int] = ..., model_fp: _Optional[str] = ..., kv_spec: _Optional[_Union[KvSpec, _Mapping]] = ..., tp_rank: _Optional[int] = ..., tp_size: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., shm_nonce: _Optional[str] = ..., credit_bytes: _Optional[int] = ..., takes_stripes: _Optional[bool] = ...) -> None: ...

class PrefillHello(_message.Message):
    __slots__ = ("protocol", "worker_id", "boot_epoch", "model_fp", "kv_spec", "tp_rank", "tp_size", "transport", "failure", "nixl_agent", "nixl_pool_address", "nixl_memory", "nixl_device_id", "zone")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    KV_SPEC_FIELD_NUMBER: _ClassVar[int]
    TP_RANK_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NIXL_AGENT_FIELD_NUMBER: _ClassVar[int]
    NIXL_POOL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NIXL_MEMORY_FIELD_NUMBER: _ClassVar[int]
    NIXL_DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_id: str
    boot_epoch: int
    model_fp: str
    kv_spec: KvSpec
    tp_rank: int
    tp_size: int
    transport: str
    failure: _failure_pb2.Failure
    nixl_agent: bytes
    nixl_pool_address: int
    nixl_memory: str
    nixl_device_id: int
    zone: str
    def __init__(self, protocol: _Optional[int] = ..., worker_id: _Optional[str] = ..., boot_epoch: _Optional[int] = ..., model_fp: _Optional[str] = ..., kv_spec: _Optional[_Union[KvSpec, _Mapping]] = ..., tp_rank: _Optional[int] = ..., tp_size: _Optional[int] = ..., transport: _Optional[str] = ..., failure: _Optional[_Union[_failure_pb2.Failure, _Mapping]] = ..., nixl_agent: _Optional[bytes] = ..., nixl_pool_address: _Optional[int] = ..., nixl_memory: _Optional[str] = ..., nixl_device_id: _Optional[int] = ..., zone: _Optional[str] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("xfer_id", "request_id", "epoch", "choice", "capability", "prompt_ids", "num_prompt_tokens", "block_hashes", "cache_key", "first_missing_block", "sampling", "emitted_ids", "deadline_ms", "traceparent", "priority", "fork_choices", "is_suspect", "is_quiet", "adapter")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_MISSING_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    EMITTED_IDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FORK_CHOICES_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    IS_QUIET_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    request_id: str
    epoch: int
    choice: int
    capability: bytes
    prompt_ids: bytes
    num_prompt_tokens: int
    block_hashes: bytes
    cache_key: bytes
    first_missing_block: int
    sampling: _sampling_pb2.Sampling
    emitted_ids: bytes
    deadline_ms: int
    traceparent: str
    priority: int
    fork_choices: _containers.RepeatedScalarFieldContainer[int]
    is_suspect: bool
    is_quiet: bool
    adapter: str
    def __init__(self, xfer_id: _Optional[int] = ..., request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., choice: _Optional[int] = ..., capability: _Optional[bytes] = ..., prompt_ids: _Optional[bytes] = ..., num_prompt_tokens: _Optional[int] = ..., block_hashes: _Optional[bytes] = ..., cache_key: _Optional[bytes] = ..., first_missing_block: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.Sampling, _Mapping]] = ..., emitted_ids: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., fork_choices: _Optional[_Iterable[int]] = ..., is_suspect: _Optional[bool] = ..., is_quiet: _Optional[bool] = ..., adapter: _Optional[str] = ...) -> None: ...

class PrefillPart(_message.Message):
    __slots__ = ("xfer_id", "prompt_ids", "block_hashes")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    prompt_ids: bytes
    block_hashes: bytes
    def __init__(self, xfer_id: _Optional[int] = ..., prompt_ids: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ...) -> None: ...

class TransferCredit(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class RenewTransfers(_message.Message):
    __slots__ = ("xfer_ids",)
    XFER_IDS_FIELD_NUMBER: _ClassVar[int]
    xfer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, xfer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TransferDone(_message.Message):
    __slots__ = ("xfer_id", "capability")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    capability: bytes
    def __init__(self, xfer_id: _Optional[int] = ..., capability: _Optional[bytes] = ...) -> None: ...

class TransferAbort(_message.Message):
    __slots__ = ("xfer_id", "capability", "failure")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    capability: bytes
    failure: _failure_pb2.Failure
    def __init__(self, xfer_id: _Optional[int] = ..., capability: _Optional[bytes] = ..., failure: _Optional[_Union[_failure_pb2.Failure, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("xfer_id",)
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    def __init__(self, xfer_id: _Optional[int] = ...) -> None: ...

class Spent(_message.Message):
    __slots__ = ("xfer_id", "engine")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    engine: _failure_pb2.EngineTime
    def __init__(self, xfer_id: _Optional[int] = ..., engine: _Optional[_Union[_failure_pb2.EngineTime, _Mapping]] = ...) -> None: ...

class TransferRefused(_message.Message):
    __slots__ = ("xfer_id", "failure")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    failure: _failure_pb2.Failure
    def __init__(self, xfer_id: _Optional[int] = ..., failure: _Optional[_Union[_failure_pb2.Failure, _Mapping]] = ...) -> None: ...

class FirstTokens(_message.Message):
    __slots__ = ("xfer_id", "token_id", "logprobs", "num_cached_tokens", "stages", "finish_reason", "forks")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    token_id: int
    logprobs: _worker_pb2.TokenLogprobs
    num_cached_tokens: int
    stages: _containers.RepeatedCompositeFieldContainer[_failure_pb2.StageTime]
    finish_reason: str
    forks: _containers.RepeatedCompositeFieldContainer[ForkToken]
    def __init__(self, xfer_id: _Optional[int] = ..., token_id: _Optional[int] = ..., logprobs: _Optional[_Union[_worker_pb2.TokenLogprobs, _Mapping]] = ..., num_cached_tokens: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_failure_pb2.StageTime, _Mapping]]] = ..., finish_reason: _Optional[str] = ..., forks: _Optional[_Iterable[_Union[ForkToken, _Mapping]]] = ...) -> None: ...

class ForkToken(_message.Message):
    __slots__ = ("token_id", "logprobs", "finish_reason")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprobs: _worker_pb2.TokenLogprobs
    finish_reason: str
    def __init__(self, token_id: _Optional[int] = ..., logprobs: _Optional[_Union[_worker_pb2.TokenLogprobs, _Mapping]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("xfer_id", "epoch", "seq", "layer", "first_block", "num_blocks", "head_lo", "head_hi", "capability", "checksum", "data", "pool_ref", "num_layers")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HEAD_LO_FIELD_NUMBER: _ClassVar[int]
    HEAD_HI_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    POOL_REF_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    epoch: int
    seq: int
    layer: int
    first_block: int
    num_blocks: int
    head_lo: int
    head_hi: int
    capability: bytes
    checksum: int
    data: bytes
    pool_ref: PoolRef
    num_layers: int
    def __init__(self, xfer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., layer: _Optional[int] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., head_lo: _Optional[int] = ..., head_hi: _Optional[int] = ..., capability: _Optional[bytes] = ..., checksum: _Optional[int] = ..., data: _Optional[bytes] = ..., pool_ref: _Optional[_Union[PoolRef, _Mapping]] = ..., num_layers: _Optional[int] = ...) -> None: ...

class PoolRef(_message.Message):
    __slots__ = ("num_bytes", "block_ids", "page_checksums")
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    PAGE_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    page_checksums: _containers.RepeatedCompositeFieldContainer[PageChecksum]
    def __init__(self, num_bytes: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., page_checksums: _Optional[_Iterable[_Union[PageChecksum, _Mapping]]] = ...) -> None: ...

class PageChecksum(_message.Message):
    __slots__ = ("place", "sum")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    place: int
    sum: int
    def __init__(self, place: _Optional[int] = ..., sum: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("xfer_id", "epoch", "num_messages", "num_blocks")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    epoch: int
    num_messages: int
    num_blocks: int
    def __init__(self, xfer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., num_messages: _Optional[int] = ..., num_blocks: _Optional[int] = ...) -> None: ...
