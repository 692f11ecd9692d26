"""Limits the prefill tokens of a step, so that running streams are not held up.

A step that decodes should end within `max_step_s`, but prefill gets at least LEAST_SHARE of the
time that the decodes themselves need: a decode waits for `max_step_s` or for one and a half times
its own step, whichever is longer. Of decodes that take longer than `max_step_s` by themselves the
share grows up to MOST_SHARE with what they take: such a batch is large, many of its answers end,
and for each a prompt must be read.

Where that is not enough, prompts wait, few streams run, and their decodes cost nearly as much as
those of many. So while each step has a prompt to read, such steps may take twice `max_step_s`. They
may take LONGEST_FACTOR times `max_step_s` where that is needed to read READ_FACTOR times what keeps
the number of streams as it is: as many prompt tokens for each decode as the latest steps read for
each of theirs. Both come by degrees in RAMP_STEPS times `max_step_s`, and end with the first step
that has nothing to read, or nothing to decode. The caller says which prompts lengthen steps.

A step without decodes may take LONE_FACTOR times as long: no stream waits for it, only newcomers
and aborts do. For SHORT_STEPS after a request of a quiet tenant, which is not to wait for the
prompts of others, no step without decodes is longer than one with, and those are lengthened by
half as much.

The times of decodes and of a prefill token are learned from the steps that ran. A mixed step has
both in it: prefill that seems dearer than it is gets ever smaller chunks, which are dearer still.
So when mixed steps are long, decodes run alone and are measured, now and then and whenever the
batch has grown. Chunked prefill beside decodes: Sarathi-Serve (OSDI 2024).
"""

LONE_FACTOR = 4
SHORT_STEPS = 300
LEAST_SHARE, MOST_SHARE = 0.5, 1.5
RAMP_STEPS = 10
READ_FACTOR, LONGEST_FACTOR = 2, 8
FIRST_CHUNK_TOKENS = 256
# After so many mixed steps, or when the batch is so much larger than it was, decodes run alone.
MAX_MIXED_STEPS = 16
_GROWN = 1.5
_WEIGHT_OF_NEWEST = 0.3
# Prompt tokens for each decode: a mean of so many steps that decode, and too low until so many
# decodes have run.
_MEAN_STEPS = 1000
_FIRST_DECODES = 1000
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
        # Prompt tokens and decodes of steps with decodes: sums in which old steps fade.
        self._read_tokens, self._num_decoded = 0.0, float(_FIRST_DECODES)
        # For so long each step has read prompts beside decodes, but those that measure decodes.
        self._reading_s = 0.0
        self._is_measuring = False

    def shorten(self) -> None:
        """Keep the next SHORT_STEPS short: a request of a quiet tenant is here, more may follow."""
        self._num_short_steps = SHORT_STEPS

    def max_prefill_tokens(self, num_decodes: int, may_lengthen: bool = True) -> int:
        """Prefill tokens for a step with that many decodes; 0 = measure the decodes alone.

        `may_lengthen`: the prompt that is read next may make the step longer.
        """
        max_s = self._max_step_s
        if max_s is None:
            return self._max_step_tokens
        is_long = self._mixed_s > max_s / 2
        self._is_measuring = num_decodes > 0 and is_long and self._is_outdated(num_decodes)
        return 0 if self._is_measuring else self.allowed_tokens(num_decodes, may_lengthen)

    def allowed_tokens(self, num_decodes: int, may_lengthen: bool = True) -> int:
        """Prefill tokens with which a step with that many decodes ends in time."""
        max_s, token_s = self._max_step_s, self._token_s
        if max_s is None:
            return self._max_step_tokens
        if token_s is None:
            return min(FIRST_CHUNK_TOKENS, self._max_step_tokens)
        if num_decodes:
            pressure = self._pressure(max_s) if may_lengthen else 0.0
            allowed_s = self._beside_decodes_s(max_s, pressure, num_decodes * token_s)
        else:
            allowed_s = max_s * (1 if self._num_short_steps else LONE_FACTOR)
        if token_s * self._max_step_tokens <= allowed_s:
            return self._max_step_tokens
        return max(1, int(allowed_s / token_s))

    def _pressure(self, max_s: float) -> float:
        """How much of the lengthening is due, up to 1."""
        pressure = min(self._reading_s / (RAMP_STEPS * max_s), 1.0)
        return pressure / 2 if self._num_short_steps else pressure

    def _beside_decodes_s(self, max_s: float, pressure: float, each_s: float) -> float:
        """The time for prefill in a step with decodes. `each_s`: of one prompt token for each."""
        decode_s = self._decode_s
        share = min(LEAST_SHARE + max(decode_s / max_s - 1, 0.0), MOST_SHARE)
        balance_s = self._read_tokens / self._num_decoded * each_s
        longest_s = max_s * (1 + (LONGEST_FACTOR - 1) * pressure)
        return max(
            max_s * (1 + pressure) - decode_s,
            share * decode_s,
            min(READ_FACTOR * pressure * balance_s, longest_s - decode_s),
        )

    def observe(self, duration_s: float, num_prefill_tokens: int, num_decodes: int) -> None:
        """One step of `duration_s` seconds has run."""
        self._num_short_steps = max(0, self._num_short_steps - 1)
        self._observe_reading(duration_s, num_prefill_tokens, num_decodes)
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

    def _observe_reading(
        self, duration_s: float, num_prefill_tokens: int, num_decodes: int
    ) -> None:
        if num_prefill_tokens and num_decodes:
            self._reading_s += duration_s
        elif not self._is_measuring:
            self._reading_s = 0.0
        if num_decodes:
            fade = 1 - 1 / _MEAN_STEPS
            self._read_tokens = fade * self._read_tokens + num_prefill_tokens
            self._num_decoded = fade * self._num_decoded + num_decodes

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
