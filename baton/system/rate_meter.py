"""A rate measured from work of very different sizes: amount over duration, both decayed.

A mean of the single rates would let a three-token prefill count as much as a whole prompt. Here a
measurement weighs as much as its duration, and older ones decay with the amount of newer work, not
with the number of measurements.
"""


class RateMeter:
    """A decayed rate: earlier work counts half after `half_life` more of it, in the same unit."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._amount = 0.0
        self._seconds = 0.0

    @property
    def per_s(self) -> float:
        """The rate; 0 means not measured yet."""
        return self._amount / self._seconds if self._seconds else 0.0

    def observe(self, amount: float, duration_s: float) -> None:
        """Add `amount` of work that took `duration_s`; an empty measurement is left out."""
        if amount <= 0 or duration_s <= 0:
            return
        keep = 0.5 ** (amount / self._half_life)
        self._amount = keep * self._amount + amount
        self._seconds = keep * self._seconds + duration_s
