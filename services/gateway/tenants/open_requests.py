"""The open requests of each tenant at one gateway, and their bound.

A limit on a key's open requests is its owner's choice, and holds for all gateways together. This
bound is the gateway's own: one tenant cannot take all of its places. Beyond its share it may take
places as long as a share stays free for others.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from baton.wire.failures import LimitExceeded


class OpenRequests:
    """The open requests. `num_places`: for all tenants; `share`: those that each may have."""

    def __init__(self, num_places: int, share: int) -> None:
        self._share = share
        self._num_free = num_places
        self._num_open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        """Count a request of a tenant as open. Raises LimitExceeded when too many are."""
        num_own = self._num_open[tenant]
        if num_own >= self._share and self._num_free <= self._share:
            message = f"{num_own} requests of this tenant are open, and the others' share is left"
            raise LimitExceeded(message, reason="share_exceeded", retry_after_s=1)
        self._num_free -= 1
        self._num_open[tenant] += 1
        try:
            yield
        finally:
            self._num_free += 1
            self._num_open[tenant] -= 1
            if not self._num_open[tenant]:
                del self._num_open[tenant]
