"""Files and batches as clients see them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.batches.store import BatchKey

WINDOW_S = 24 * 3600
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def file_json(
    file_id: str, name: str, purpose: str, num_bytes: int, times: tuple[int, int]
) -> bytes:
    """A file. `times`: of its creation and of its end."""
    created_s, expires_s = times
    fields = {
        "id": file_id,
        "object": "file",
        "bytes": num_bytes,
        "created_at": created_s,
        "expires_at": expires_s,
        "filename": name,
        "purpose": purpose,
        "status": "processed",
    }
    return msgspec.json.encode(fields)


def output_ids(key: BatchKey) -> tuple[str, str]:
    """The names of the files of a batch's answers, and of its failures."""
    own = key.batch_id.removeprefix("batch_")
    return f"file-{own}-output", f"file-{own}-errors"


def batch_object(fields: Mapping[str, str]) -> dict[str, Any]:
    """A batch, from the fields of its record."""

    def number(name: str) -> int:
        return int(fields.get(name) or 0)

    return {
        "id": fields["id"],
        "object": "batch",
        "endpoint": fields["endpoint"],
        "model": fields.get("model") or None,
        "errors": _errors(fields.get("errors", "")),
        "input_file_id": fields["input_file_id"],
        "completion_window": "24h",
        "status": fields["status"],
        "output_file_id": fields.get("output_file_id") or None,
        "error_file_id": fields.get("error_file_id") or None,
        "created_at": number("created_at"),
        "expires_at": number("expires_at"),
        **{f"{name}_at": number(f"{name}_at") or None for name in _TIMES},
        "request_counts": {name: number(name) for name in ("total", "completed", "failed")},
        "usage": {
            "input_tokens": number("input_tokens"),
            "input_tokens_details": {"cached_tokens": number("cached_tokens")},
            "output_tokens": number("output_tokens"),
            "output_tokens_details": {"reasoning_tokens": number("reasoning_tokens")},
            "total_tokens": number("input_tokens") + number("output_tokens"),
        },
        "metadata": msgspec.json.decode(fields["metadata"]),
    }


def _errors(kept: str) -> dict[str, Any] | None:
    return {"object": "list", "data": msgspec.json.decode(kept)} if kept else None
