"""How many prefill tokens a step may take, so that running streams are not held up.

A step that decodes should end within `max_step_s`, but prefill gets at least as long as the decodes
themselves need: a decode waits for at most twice its own step, or `max_step_s`, whichever is
longer. A step without decodes may take LONE_FACTOR times as long: nobody's next token waits for it,
only newcomers and aborts do. The time of a prefill token is learned from the steps that ran; an
overestimate for small chunks (fixed costs) corrects itself, as the next chunk grows by the ratio of
what was allowed to what was taken. Chunked prefill beside decodes: Sarathi-Serve (OSDI 2024).
"""

LONE_FACTOR = 4
FIRST_CHUNK_TOKENS = 256
_WEIGHT_OF_NEWEST = 0.3


class ChunkPolicy:
    """One engine's; `max_step_s` None = every step may be as full as the token budget."""

    def __init__(self, max_step_tokens: int, max_step_s: float | None) -> None:
        self._max_step_tokens = max_step_tokens
        self._max_step_s = max_step_s
        self._token_s: float | None = None
        self._decode_s: float | None = None

    def max_prefill_tokens(self, num_decodes: int) -> int:
        """Prefill tokens for a step with that many decodes; at least 1."""
        if self._max_step_s is None:
            return self._max_step_tokens
        if self._token_s is None:
            return min(FIRST_CHUNK_TOKENS, self._max_step_tokens)
        allowed_s = LONE_FACTOR * self._max_step_s
        if num_decodes:
            decode_s = self._decode_s or 0.0
            allowed_s = max(self._max_step_s - decode_s, decode_s)
        if self._token_s * self._max_step_tokens <= allowed_s:
            return self._max_step_tokens
        return max(1, int(allowed_s / self._token_s))

    def observe(self, duration_s: float, num_prefill_tokens: int, num_decodes: int) -> None:
        """One step of `duration_s` seconds has run."""
        if not num_prefill_tokens:
            self._decode_s = _mean(self._decode_s, duration_s)
            return
        if num_decodes:
            # Rows share the reading of the weights: without this floor prefill could seem free.
            duration_s = max(duration_s - (self._decode_s or 0.0), duration_s / 2)
        self._token_s = _mean(self._token_s, duration_s / num_prefill_tokens)


def _mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _WEIGHT_OF_NEWEST * (newest - mean)
