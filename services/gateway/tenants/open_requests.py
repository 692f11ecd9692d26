"""The open requests of each tenant at one gateway, and their bound.

A limit on a key's open requests is its owner's choice, and holds for all gateways together. This
bound is the gateway's own: one tenant cannot take all of its places.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from baton.wire.failures import LimitExceeded


class OpenRequests:
    """The open requests, `max_of_tenant` of a tenant at most."""

    def __init__(self, max_of_tenant: int) -> None:
        self._max_of_tenant = max_of_tenant
        self._num_open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        """Count a request of a tenant as open. Raises LimitExceeded when too many are."""
        if self._num_open[tenant] >= self._max_of_tenant:
            message = f"{self._max_of_tenant} requests of this tenant are open at this gateway"
            raise LimitExceeded(message, reason="share_exceeded", retry_after_s=1)
        self._num_open[tenant] += 1
        try:
            yield
        finally:
            self._num_open[tenant] -= 1
            if not self._num_open[tenant]:
                del self._num_open[tenant]
