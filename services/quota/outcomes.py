"""The outcomes with which the scripts in lua/ reply, as metrics name them."""

from enum import StrEnum


class ReserveOutcome(StrEnum):
    """The outcome of lua/reserve.lua."""

    GRANTED = "granted"
    # No room now: in a bucket, among the concurrent leases, in the budget.
    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    BUDGET = "budget"
    RESTORING = "restoring"  # a hard budget of which not all that was spent is known yet
    EXCEEDS_TOKENS = "exceeds_tokens"  # it never fits
    UNKNOWN_KEY = "unknown_key"
    REVOKED_KEY = "revoked_key"
    USED_REQUEST_ID = "used_request_id"


class RenewOutcome(StrEnum):
    """The state of one lease after lua/renew.lua."""

    HELD = "held"
    # No extension: the minute's tokens have no room now, the budget has none. The old grant holds.
    SHORT = "short"
    REFUSED = "refused"
    LOST = "lost"
    UNKNOWN_KEY = "unknown_key"  # lost, and the store has lost the keys, too


class SettleOutcome(StrEnum):
    """The outcome of lua/settle.lua."""

    SETTLED = "settled"
    REPEATED = "repeated"
    UNKNOWN = "unknown"  # never reserved here: debited in full
    UNKNOWN_KEY = "unknown_key"  # not settled
