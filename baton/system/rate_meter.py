"""A rate measured from work of very different sizes: what was done over what it took, both decayed.

A mean of the single rates would let a three-token prefill count as much as a whole prompt; here a
measurement weighs as much as the time that it took.
"""


class RateMeter:
    """`keep`: what is left of an observation's weight after one more, in (0, 1)."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._amount = 0.0
        self._seconds = 0.0

    @property
    def per_s(self) -> float:
        """0 means not measured yet."""
        return self._amount / self._seconds if self._seconds else 0.0

    def observe(self, amount: float, duration_s: float) -> None:
        """So much was done in `duration_s` seconds; nothing, or in no time, tells nothing."""
        if amount <= 0 or duration_s <= 0:
            return
        self._amount = self._keep * self._amount + amount
        self._seconds = self._keep * self._seconds + duration_s
