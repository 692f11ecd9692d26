"""Wrong API keys per client address: after many of them an address must wait with the next.

Only keys that quota refused count, and only unknown keys are held back: a client that shares an
address with a guesser goes on with a key that this gateway has seen to be good. They are counted
here and not in Envoy, whose limits cannot depend on an answer:
docs/decisions/0012-wrong-keys-per-address.md.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from baton.system.clock import Clock
from baton.wire.failures import LimitExceeded

# A bucket: so many wrong keys at once, and then one more after each interval.
MAX_WRONG_KEYS = 20
REFILL_S = 3.0
MAX_ADDRESSES = 10_000


class BadKeys:
    """The wrong keys that one gateway has seen. An address that is not known is not counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The time at which the address's bucket is full again; the least recently wrong come first.
        self._full_at_s: OrderedDict[str, float] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Raise LimitExceeded when this address may not try another unknown key now."""
        if address is None:
            return
        missing_s = self._full_at_s.get(_neighbours(address), 0.0) - self._clock.now()
        wait_s = missing_s - (MAX_WRONG_KEYS - 1) * REFILL_S
        if wait_s > 0:
            raise LimitExceeded("too many wrong API keys from this address", retry_after_s=wait_s)

    def note(self, address: str | None) -> None:
        """Note that this address has used a wrong key."""
        if address is None:
            return
        key, now = _neighbours(address), self._clock.now()
        self._full_at_s[key] = max(self._full_at_s.get(key, now), now) + REFILL_S
        self._full_at_s.move_to_end(key)
        if len(self._full_at_s) > MAX_ADDRESSES:
            self._full_at_s.popitem(last=False)


def _neighbours(address: str) -> str:
    """The address itself or, of IPv6, its network of 64 bits, all of which one subscriber has."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address
