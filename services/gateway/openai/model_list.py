"""/v1/models: the public names that a tenant may use."""

import msgspec


def model_object(name: str, created_unix_s: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created_unix_s, "owned_by": "baton"}


def model_list_body(names: list[str], created_unix_s: int) -> bytes:
    data = [model_object(name, created_unix_s) for name in names]
    return msgspec.json.encode({"object": "list", "data": data})


def model_body(name: str, created_unix_s: int) -> bytes:
    return msgspec.json.encode(model_object(name, created_unix_s))
