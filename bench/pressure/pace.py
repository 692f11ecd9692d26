"""The pace of a worker's steps, for `bench/pressure/paced_core.py`. Without torch."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from baton.engine.protocol.batch import StepBatch, StepResult

VARIABLE = "BENCH_PACE"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a step with a decode in it, and of each prompt token; the token that comes."""

    decode_s: float
    prompt_token_s: float
    token_id: int

    @classmethod
    def of_environment(cls) -> Self:
        decode_s, prompt_token_s, token_id = os.environ[VARIABLE].split(",")
        return cls(float(decode_s), float(prompt_token_s), int(token_id))

    def __str__(self) -> str:
        return f"{self.decode_s},{self.prompt_token_s},{self.token_id}"

    def step_s(self, batch: StepBatch) -> float:
        """The time of this step: one query token is a decode, more are of a prompt."""
        num_tokens = np.diff(batch.query_starts)
        num_prompt_tokens = int(num_tokens[num_tokens > 1].sum())
        decode_s = self.decode_s if (num_tokens == 1).any() else 0.0
        return decode_s + self.prompt_token_s * num_prompt_tokens


class PacedRunner:
    """The runner of the model, but for the steps."""

    def __init__(self, inner: Any, pace: Pace, sleep: Callable[[float], None] = time.sleep) -> None:
        self._inner = inner
        self._pace = pace
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: StepBatch) -> StepResult:
        self._sleep(self._pace.step_s(batch))
        return StepResult(np.full(len(batch.sample_rows), self._pace.token_id, np.int64))
