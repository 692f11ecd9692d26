"""Measures how fast this worker prefills and decodes: exponential means over its steps."""

_WEIGHT_OF_NEWEST = 0.1


class LoadMeter:
    """0 means not measured yet. A step counts for prefill, decode, or both."""

    def __init__(self) -> None:
        self.prefill_tokens_per_s = 0.0
        self.decode_step_s = 0.0

    def observe(self, duration_s: float, num_prefill_tokens: int, num_decodes: int) -> None:
        """One step of `duration_s` seconds has run."""
        if duration_s <= 0:
            return
        if num_prefill_tokens:
            rate = num_prefill_tokens / duration_s
            self.prefill_tokens_per_s = _mean(self.prefill_tokens_per_s, rate)
        if num_decodes:
            self.decode_step_s = _mean(self.decode_step_s, duration_s)


def _mean(mean: float, newest: float) -> float:
    return mean + _WEIGHT_OF_NEWEST * (newest - mean) if mean else newest
