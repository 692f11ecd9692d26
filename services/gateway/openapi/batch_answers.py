"""The forms of files and batches, for the description of the API: nothing is built from them."""

from typing import Literal

from msgspec import Struct

from services.gateway.openapi.answers import OutputTokenDetails, PromptTokenDetails


class FileForm(Struct):
    """The form of an upload; it is read a piece at a time."""

    purpose: Literal["batch"]
    file: bytes


class File(Struct):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(Struct):
    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchError(Struct):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(Struct):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Struct):
    total: int
    completed: int
    failed: int


class BatchUsage(Struct):
    input_tokens: int
    input_tokens_details: PromptTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class Batch(Struct):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(Struct):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
