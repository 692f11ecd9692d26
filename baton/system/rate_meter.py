"""A rate measured from work of very different sizes: what was done over what it took, both decayed.

A mean of the single rates would let a three-token prefill count as much as a whole prompt. Here a
measurement weighs as much as the time that it took, and it is much work, not many small pieces,
that makes older ones count less.
"""


class RateMeter:
    """Earlier work counts half after `half_life` more of it, in whatever unit is measured."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
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
        keep = 0.5 ** (amount / self._half_life)
        self._amount = keep * self._amount + amount
        self._seconds = keep * self._seconds + duration_s
