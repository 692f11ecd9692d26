"""Something that must hold and does not: what auditors find. The engine's core sends it to its
front as it is."""

import msgspec


class Violation(msgspec.Struct, array_like=True, frozen=True):
    """`check` names what was broken, from a fixed list; `request_id` is empty when nobody knows."""

    check: str
    request_id: str
    detail: str
