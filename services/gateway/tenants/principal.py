"""The principal of a request, and the limits that it falls under."""

from dataclasses import dataclass, replace

from baton.wire.key_registry import BATCH_PRIORITY
from baton.wire.v1 import quota_pb2

# A name that no model has.
_NO_MODEL = ""


def account_name(owner: str, model: str) -> str:
    """The name of an account. Without a model it is that of all models together."""
    return f"{owner}@{model}" if model else owner


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """The limits of one account: of a key, its tenant or its organisation, over all models or over
    a single one. It has a field for each limit, hence many; 0 = unlimited."""

    # The id of the key, "tenant:NAME" or "organisation:NAME".
    owner: str
    # Empty = all models together.
    model: str = ""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    budget_tokens: int = 0
    budget_cost: int = 0
    hard_budget: bool = False

    @classmethod
    def of(cls, owner: str, model: str, limits: quota_pb2.Limits) -> "AccountLimits":
        """Read limits as quota tells them."""
        return cls(
            owner,
            model,
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
            concurrency=limits.concurrency,
            budget_tokens=limits.budget_tokens,
            budget_cost=limits.budget_cost,
            hard_budget=limits.hard_budget,
        )

    @property
    def name(self) -> str:
        """The name of the account, which all keys have in common that share it."""
        return account_name(self.owner, self.model)

    @property
    def scope(self) -> str:
        """The level and the model, as quota names them to clients."""
        level, colon, _ = self.owner.partition(":")
        level = level if colon else "key"
        return f"{level}, model {self.model}" if self.model else level


@dataclass(frozen=True, slots=True)
class VouchedIdentity:
    """A name that somebody else vouches for, which a key of the registry stands for. `models`:
    those that its voucher allows; None when it leaves that to the registry."""

    name: str
    models: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class KnownKey:
    """An API key that was sent before, by its digests: under the server secret of that time, and
    under older ones."""

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Principal:
    """The tenant and the key of a request, with what they allow."""

    tenant: str
    key_id: str
    allowed_models: tuple[str, ...] = ()
    priority: int = 0
    weight: float = 1.0
    # Of all its accounts, those of models that it never asks for included.
    limits: tuple[AccountLimits, ...] = ()

    @classmethod
    def of(cls, answer: quota_pb2.AuthenticateResponse) -> "Principal":
        """Read a principal as quota tells it."""
        return cls(
            tenant=answer.tenant,
            key_id=answer.key_id,
            allowed_models=tuple(answer.allowed_models),
            priority=answer.priority,
            weight=answer.weight or 1.0,
            limits=(
                AccountLimits.of(answer.key_id, "", answer.limits),
                *(AccountLimits.of(more.owner, more.model, more.limits)
                  for more in answer.more_limits),
            ),
        )  # fmt: skip

    def priority_of(self, lateness: int) -> int:
        """The priority of a request that is so much later than others of the key; one that is
        sooner has no more than the key has."""
        return max(self.priority - max(lateness, 0), min(self.priority, 0))

    def for_batch(self) -> "Principal":
        """The same, behind all requests that clients wait for."""
        return replace(self, priority=BATCH_PRIORITY)

    def narrowed(self, models: tuple[str, ...] | None) -> "Principal":
        """The same, for no other models than these; None = as it is. Without any that both allow
        nothing is allowed."""
        if models is None:
            return self
        both = [name for name in models if not self.allowed_models or name in self.allowed_models]
        # An empty list would allow all.
        return replace(self, allowed_models=tuple(both) or (_NO_MODEL,))

    def limits_for(self, model: str) -> tuple[AccountLimits, ...]:
        """The limits that a request for a model falls under, of all levels."""
        return tuple(limits for limits in self.limits if limits.model in ("", model))

    def has_hard_budget(self, model: str) -> bool:
        """True when a request for a model may exceed no budget, whatever is away."""
        return any(limits.hard_budget for limits in self.limits_for(model))
