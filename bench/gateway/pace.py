"""The pace of one simulated answer, which travels to the worker in the seed of its request."""

from dataclasses import dataclass
from typing import Self

_STEP_RANGE = 10_000_000_000


@dataclass(frozen=True, slots=True)
class AnswerPace:
    """Milliseconds to the first token, and microseconds between two tokens (up to 10^10)."""

    prefill_ms: int
    step_us: int

    @property
    def seed(self) -> int:
        return self.prefill_ms * _STEP_RANGE + self.step_us

    @classmethod
    def of_seed(cls, seed: int) -> Self:
        return cls(*divmod(seed, _STEP_RANGE))
