"""Limits the prefill tokens of a step, so that running streams are not held up.

A step that decodes should end within `max_step_s`, but prefill gets at least LEAST_SHARE of the
time that the decodes themselves need: a decode waits for `max_step_s` or for one and a half times
its own step, whichever is longer. Prefill gets up to MOST_SHARE where it would fall behind. While
more prompts could be read than streams run, their ratio is its share. Of decodes that take longer
than `max_step_s` by themselves the share grows with what they take: such a batch is large, many of
its answers end, and for each a prompt must be read.

While prompts are read or wait a step may take longer, twice as long when there is one for
QUEUE_STREAMS streams: a queue that stands takes the places of streams, and decodes of few streams
cost nearly as much as those of many.

A step without decodes may take LONE_FACTOR times as long: no stream waits for it, only newcomers
and aborts do. For SHORT_STEPS after a request of a quiet tenant, which is not to wait for the
prompts of others, no step takes longer than with decodes and without a queue.

The times of decodes and of a prefill token are learned from the steps that ran. A mixed step has
both in it: prefill that seems dearer than it is gets ever smaller chunks, which are dearer still.
So when mixed steps are long, decodes run alone and are measured, now and then and whenever the
batch has grown. Chunked prefill beside decodes: Sarathi-Serve (OSDI 2024).
"""

LONE_FACTOR = 4
SHORT_STEPS = 300
LEAST_SHARE, MOST_SHARE = 0.5, 1.5
QUEUE_STREAMS = 4
FIRST_CHUNK_TOKENS = 256
# After so many mixed steps, or when the batch is so much larger than it was, decodes run alone.
MAX_MIXED_STEPS = 16
_GROWN = 1.5
_WEIGHT_OF_NEWEST = 0.3
# The least share of a mixed step's time that is its prefill's: rows share the reading of weights.
_LEAST_SHARE = 0.1


class ChunkPolicy:
    """The policy of one engine; `max_step_s` None = only the token budget limits a step."""

    def __init__(self, max_step_tokens: int, max_step_s: float | None) -> None:
        self._max_step_tokens = max_step_tokens
        self._max_step_s = max_step_s
        self._token_s: float | None = None
        self._decode_s = 0.0
        # In the last step without prefill; mixed steps since, and what the longest of them took.
        self._num_decodes = 0
        self._num_mixed = 0
        self._mixed_s = 0.0
        self._num_short_steps = 0

    def shorten(self) -> None:
        """Keep the next SHORT_STEPS short: a request of a quiet tenant is here, more may follow."""
        self._num_short_steps = SHORT_STEPS

    def max_prefill_tokens(self, num_decodes: int, num_prompts: int = 0) -> int:
        """Prefill tokens for a step with that many decodes; 0 = measure the decodes alone.

        `num_prompts`: those that are read or could be.
        """
        if self._max_step_s is None:
            return self._max_step_tokens
        if num_decodes and self._mixed_s > self._max_step_s / 2 and self._is_outdated(num_decodes):
            return 0
        return self.allowed_tokens(num_decodes, num_prompts)

    def allowed_tokens(self, num_decodes: int, num_prompts: int = 0) -> int:
        """Prefill tokens with which a step with that many decodes ends in time."""
        if self._max_step_s is None:
            return self._max_step_tokens
        if self._token_s is None:
            return min(FIRST_CHUNK_TOKENS, self._max_step_tokens)
        allowed_s = self._longest_s(num_decodes, num_prompts)
        if num_decodes:
            excess = self._decode_s / self._max_step_s - 1
            share = max(LEAST_SHARE, LEAST_SHARE + excess, num_prompts / num_decodes)
            allowed_s = max(allowed_s - self._decode_s, min(share, MOST_SHARE) * self._decode_s)
        if self._token_s * self._max_step_tokens <= allowed_s:
            return self._max_step_tokens
        return max(1, int(allowed_s / self._token_s))

    def _longest_s(self, num_decodes: int, num_prompts: int) -> float:
        """The time of a step, unless its decodes are slow."""
        assert self._max_step_s is not None
        if self._num_short_steps:
            return self._max_step_s
        if not num_decodes:
            return self._max_step_s * LONE_FACTOR
        return self._max_step_s * (1 + min(QUEUE_STREAMS * num_prompts / num_decodes, 1))

    def observe(self, duration_s: float, num_prefill_tokens: int, num_decodes: int) -> None:
        """One step of `duration_s` seconds has run."""
        self._num_short_steps = max(0, self._num_short_steps - 1)
        if not num_prefill_tokens:
            # As it was just now: batches change faster than a mean would follow.
            self._decode_s = duration_s
            self._num_decodes = num_decodes
            self._num_mixed = 0
            self._mixed_s = 0.0
            return
        if num_decodes:
            self._num_mixed += 1
            self._mixed_s = max(self._mixed_s, duration_s)
            duration_s = max(duration_s - self._decode_s, _LEAST_SHARE * duration_s)
        self._token_s = _mean(self._token_s, duration_s / num_prefill_tokens)

    def expected_s(self, num_prefill_tokens: int, num_decodes: int) -> float | None:
        """The time of such a step, going by the last ones; None while that is not known."""
        if (num_prefill_tokens and self._token_s is None) or (num_decodes and not self._decode_s):
            return None
        prefill_s = num_prefill_tokens * (self._token_s or 0.0)
        return prefill_s + (self._decode_s if num_decodes else 0.0)

    def prefill_share(self, num_prefill_tokens: int, num_decodes: int) -> float:
        """The share of such a step's time that is its prefill's, going by the last steps; by the
        number of tokens while that is not known."""
        if not self._token_s or (num_decodes and not self._decode_s):
            return num_prefill_tokens / (num_prefill_tokens + num_decodes)
        prefill_s = num_prefill_tokens * self._token_s
        return prefill_s / (prefill_s + (self._decode_s if num_decodes else 0.0))

    def _is_outdated(self, num_decodes: int) -> bool:
        has_grown = num_decodes > _GROWN * self._num_decodes
        return has_grown or self._num_mixed >= MAX_MIXED_STEPS


def _mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _WEIGHT_OF_NEWEST * (newest - mean)
