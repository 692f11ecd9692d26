from baton.wire.v1 import calls_pb2 as _calls_pb2
from baton.wire.v1 import failure_pb2 as _failure_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EncodeRequest(_message.Message):
    __slots__ = ("request_id", "model_fp", "cache_key", "block_size", "chat", "text", "token_ids", "max_prompt_tokens", "tenant", "add_special_tokens", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model_fp: str
    cache_key: bytes
    block_size: int
    chat: ChatPrompt
    text: str
    token_ids: bytes
    max_prompt_tokens: int
    tenant: str
    add_special_tokens: bool
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., model_fp: _Optional[str] = ..., cache_key: _Optional[bytes] = ..., block_size: _Optional[int] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., text: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., max_prompt_tokens: _Optional[int] = ..., tenant: _Optional[str] = ..., add_special_tokens: _Optional[bool] = ..., adapter: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages_json", "tools_json", "add_generation_prompt", "template_kwargs_json", "continue_final_message")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages_json: bytes
    tools_json: bytes
    add_generation_prompt: bool
    template_kwargs_json: bytes
    continue_final_message: bool
    def __init__(self, messages_json: _Optional[bytes] = ..., tools_json: _Optional[bytes] = ..., add_generation_prompt: _Optional[bool] = ..., template_kwargs_json: _Optional[bytes] = ..., continue_final_message: _Optional[bool] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("token_ids", "block_hashes", "stages")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    block_hashes: bytes
    stages: _containers.RepeatedCompositeFieldContainer[_failure_pb2.StageTime]
    def __init__(self, token_ids: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ..., stages: _Optional[_Iterable[_Union[_failure_pb2.StageTime, _Mapping]]] = ...) -> None: ...

class GetArtifactRequest(_message.Message):
    __slots__ = ("model_fp",)
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    model_fp: str
    def __init__(self, model_fp: _Optional[str] = ...) -> None: ...

class GetArtifactResponse(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: ArtifactHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[ArtifactHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ArtifactHeader(_message.Message):
    __slots__ = ("digest", "num_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    num_bytes: int
    def __init__(self, digest: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[TokenizerModel]
    def __init__(self, models: _Optional[_Iterable[_Union[TokenizerModel, _Mapping]]] = ...) -> None: ...

class TokenizerModel(_message.Message):
    __slots__ = ("model_fp", "name", "revision", "vocab_size", "eos_token_ids", "has_chat_template")
    MODEL_FP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    model_fp: str
    name: str
    revision: str
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_chat_template: bool
    def __init__(self, model_fp: _Optional[str] = ..., name: _Optional[str] = ..., revision: _Optional[str] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., has_chat_template: _Optional[bool] = ...) -> None: ...
