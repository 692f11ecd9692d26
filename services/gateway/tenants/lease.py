"""A quota lease of one running request, as the gateway holds it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.tenants.principal import AccountLimits

# A lease with fewer granted tokens left than this asks for more.
LOW_TOKENS = 128
# The largest share of a key's minute that is asked for at once, where the client set no maximum.
_SHARES = 8
_UNLIMITED = 2**40


def extension_share(tokens_per_minute: int) -> int:
    """The most tokens to ask for at once under this limit, 0 of which is unlimited."""
    return max(tokens_per_minute // _SHARES, 1) if tokens_per_minute else _UNLIMITED


def nothing_changes() -> None:
    """Do nothing: no request follows this lease."""


def nothing_produced() -> int:
    """0: no request follows this lease."""
    return 0


class Standing(Enum):
    """The last word of quota on a lease."""

    HELD = auto()
    # No extension: the minute has no room now, quota does not answer, the budget is spent.
    SHORT = auto()
    AWAY = auto()
    SPENT = auto()
    LOST = auto()


_STATES = quota_pb2.LeaseState
_STANDINGS = {
    _STATES.STATE_HELD: Standing.HELD,
    _STATES.STATE_SHORT: Standing.SHORT,
    _STATES.STATE_REFUSED: Standing.SPENT,
    _STATES.STATE_LOST: Standing.LOST,
}


@dataclass(slots=True, eq=False)
class Lease:
    """One request's lease. Token counts are output tokens over all choices.

    It has a field for each value that a renewal repeats or an answer changes, hence many.
    """

    request_id: str
    tenant: str
    key_id: str
    model: str
    num_prompt_tokens: int
    num_granted: int
    # The state of the key's limits at the grant, for the response's headers.
    limits: failure_pb2.LimitState = field(default_factory=failure_pb2.LimitState)
    # The limits of all levels that it falls under.
    accounts: tuple[AccountLimits, ...] = ()
    # The prompt is not tokenized yet; so long the lease is not renewed.
    is_estimate: bool = False
    # Granted by this gateway during an outage; the quota service does not know it.
    local: bool = False
    # The most tokens that the workers may produce with the credit they have.
    num_credited: int = 0
    num_wanted: int = 0
    standing: Standing = Standing.HELD
    # The name of the limit that has no room for more, for people.
    spent_limit: str = ""
    # Counts the tokens that the workers have produced.
    num_produced: Callable[[], int] = field(default=nothing_produced)
    # Called when num_granted or standing changed.
    on_change: Callable[[], None] = field(default=nothing_changes)

    @property
    def is_asking(self) -> bool:
        """True when it asked for more than it was granted so far."""
        return self.num_wanted > self.num_granted

    @property
    def is_renewed(self) -> bool:
        """True when quota knows the lease, and this gateway the prompt's tokens."""
        return not self.local and not self.is_estimate

    @property
    def num_missing(self) -> int:
        """The tokens that it asked for and was not granted so far."""
        return max(self.num_wanted - self.num_granted, 0)

    def answer(self, state: quota_pb2.LeaseState) -> None:
        """Take in quota's answer. One to a renewal before the ask leaves that ask open."""
        self.num_granted = max(self.num_granted, state.granted_output_tokens)
        if state.state != _STATES.STATE_HELD or not self.is_asking:
            self.standing = _STANDINGS.get(state.state, self.standing)
            self.spent_limit = state.spent_limit

    def to_wire(self) -> quota_pb2.LeaseRenewal:
        """The renewal, with every value that a store needs to hold a lease again that it lost."""
        wanted = self.num_wanted if self.is_asking else 0
        return quota_pb2.LeaseRenewal(
            request_id=self.request_id,
            tenant=self.tenant,
            # Credit grows up to the grant without another renewal.
            used_output_tokens=max(self.num_granted, wanted),
            wanted_output_tokens=wanted,
            produced_output_tokens=min(self.num_produced(), self.num_credited),
            key_id=self.key_id,
            model=self.model,
            num_prompt_tokens=self.num_prompt_tokens,
            granted_output_tokens=self.num_granted,
        )
