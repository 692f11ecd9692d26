"""A violated invariant, as auditors find it. An engine's core sends it to its front unchanged."""

import msgspec


class Violation(msgspec.Struct, array_like=True, frozen=True):
    """One violation.

    `check` names the broken invariant, from a fixed list. `request_id` is empty when it is unknown.
    """

    check: str
    request_id: str
    detail: str
