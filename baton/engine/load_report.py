"""Measures how fast this worker prefills and decodes, from its steps.

A step costs something before its first prompt token: it reads all weights, and it may decode. That
is known from the steps that only decode; the rest is its prefill's. Otherwise a decode worker that
prefills a few tokens now and then would look as slow at it as its batch is large, or as a step is
long, and would never be chosen for a prompt again.
"""

_WEIGHT_OF_NEWEST = 0.1
# After so many prefilled tokens, earlier ones count half.
_HALF_LIFE_TOKENS = 2048
# Of a step's time, how much is its prefill's at least: rows share the reading of the weights.
_LEAST_SHARE = 0.1


class LoadMeter:
    """0 means not measured yet."""

    def __init__(self) -> None:
        self.decode_step_s = 0.0
        self._prefill = _TokenTime()
        self._has_decoded_alone = False

    @property
    def prefill_tokens_per_s(self) -> float:
        """Without what a step costs that prefills nothing."""
        return self._prefill.per_s

    def observe(self, duration_s: float, num_prefill_tokens: int, num_decodes: int) -> None:
        """One step of `duration_s` seconds has run."""
        if duration_s <= 0:
            return
        if num_prefill_tokens:
            step_s = self.decode_step_s if self._has_decoded_alone else 0.0
            prefill_s = max(duration_s - step_s, _LEAST_SHARE * duration_s)
            self._prefill.observe(num_prefill_tokens, prefill_s)
        if num_decodes and (not num_prefill_tokens or not self._has_decoded_alone):
            self._observe_decode(duration_s, is_alone=not num_prefill_tokens)

    def _observe_decode(self, duration_s: float, *, is_alone: bool) -> None:
        """Mixed steps count only until there is one without prefill, which starts anew."""
        if is_alone and not self._has_decoded_alone:
            self._has_decoded_alone = True
            self.decode_step_s = duration_s
        elif self.decode_step_s:
            self.decode_step_s += _WEIGHT_OF_NEWEST * (duration_s - self.decode_step_s)
        else:
            self.decode_step_s = duration_s


class _TokenTime:
    """Least squares through the origin: a step of ten times the tokens tells ten times as exactly
    what one of them takes, so short steps do not outvote long ones."""

    def __init__(self) -> None:
        self._tokens_squared = 0.0
        self._tokens_seconds = 0.0

    @property
    def per_s(self) -> float:
        """0 = nothing observed."""
        return self._tokens_squared / self._tokens_seconds if self._tokens_seconds else 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        keep = 0.5 ** (num_tokens / _HALF_LIFE_TOKENS)
        self._tokens_squared = keep * self._tokens_squared + num_tokens**2
        self._tokens_seconds = keep * self._tokens_seconds + num_tokens * seconds
