"""/v1/models: the public names that a tenant may use.

`max_model_len` is vLLM's addition: the tokens that prompt and answer may have together.
"""

from collections.abc import Mapping

import msgspec


def model_object(name: str, max_model_len: int, created_unix_s: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": "baton",
        "max_model_len": max_model_len,
    }


def model_list_body(rooms: Mapping[str, int], created_unix_s: int) -> bytes:
    """`rooms`: max_model_len by name."""
    data = [model_object(name, room, created_unix_s) for name, room in rooms.items()]
    return msgspec.json.encode({"object": "list", "data": data})


def model_body(name: str, max_model_len: int, created_unix_s: int) -> bytes:
    return msgspec.json.encode(model_object(name, max_model_len, created_unix_s))
