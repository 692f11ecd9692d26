"""Times the steps: for the reported load, the chunk policy, the progress page, and for bills."""

from baton.engine.protocol.messages import StepEvents
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.step_plan import StepPlan
from baton.engine.step.step_shares import StepShares
from baton.system.clock import Clock
from baton.system.rate_meter import RateMeter

_WEIGHT_OF_NEWEST = 0.1
# After so many prefilled tokens, earlier ones count half.
_HALF_LIFE_TOKENS = 2048
# The least share of a step's time that is its prefill's: rows share the reading of the weights.
_LEAST_SHARE = 0.1
# The shortest step grows by this with each one, to follow a machine that became slower.
_DRIFT = 1.001


class LoadMeter:
    """The rates of one engine, measured from its steps; 0 means not measured yet.

    A step costs something before its first prompt token: it reads all weights, and it may decode.
    The rest is its prefill's. Otherwise a decode worker that prefills a few tokens now and then
    would look as slow at it as its batch is large, or as a step is long, and would never be chosen
    for a prompt again. Decodes are known from the steps that only decode; a step by itself, on
    workers that never decode too, from the probes of an idle core.
    """

    def __init__(self) -> None:
        self.decode_step_s = 0.0
        self._prefill = RateMeter(_HALF_LIFE_TOKENS)
        self._has_decoded_alone = False
        # The shortest step without prefill lately.
        self._least_step_s = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """The rate, without the time that a step takes to prefill nothing."""
        return self._prefill.per_s

    def observe_short(self, duration_s: float) -> None:
        """A step without prefill has run; a probe is one, of a token of no sequence."""
        least_s = self._least_step_s * _DRIFT
        self._least_step_s = min(duration_s, least_s) if least_s else duration_s

    def observe(self, duration_s: float, num_prefill_tokens: int, num_decodes: int) -> None:
        """One step of `duration_s` seconds has run."""
        if duration_s <= 0:
            return
        if num_prefill_tokens:
            is_decoding = num_decodes > 0 and self._has_decoded_alone
            step_s = self.decode_step_s if is_decoding else self._least_step_s
            prefill_s = max(duration_s - step_s, _LEAST_SHARE * duration_s)
            self._prefill.observe(num_prefill_tokens, prefill_s)
        elif num_decodes:
            self.observe_short(duration_s)
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


class StepTimer:
    """Measures one turn at a time: `turn`, then `begin`, `computed` and `end`, or `idle`."""

    def __init__(self, clock: Clock, chunks: ChunkPolicy, shares: StepShares) -> None:
        self.chunks = chunks
        self.shares = shares
        self.meter = LoadMeter()
        self._clock = clock
        self._began_at = 0.0
        self._probe_s: float | None = None

    def turn(self) -> None:
        """Commands are applied and a step is planned from now on."""
        if not self.shares.is_busy:
            self.shares.begin(int(self._clock.now() * 1e6))

    def begin(self) -> None:
        self._began_at = self._clock.now()

    def idle(self) -> None:
        """The turn has nothing to compute."""
        self.shares.is_busy = False

    def computed(self, plan: StepPlan, events: StepEvents) -> None:
        """The step's result is there, and is committed from now on."""
        self.shares.charge(plan, int(self._clock.now() * 1e6), events)

    def end(self, plan: StepPlan, events: StepEvents) -> None:
        """The step that has begun ran as planned, and is committed."""
        now = self._clock.now()
        self.shares.tell_held(plan, events)
        duration_s = now - self._began_at
        if plan.is_probe:
            self._probe_s = duration_s
            self.meter.observe_short(duration_s)
        else:
            self.meter.observe(duration_s, plan.num_prefill_tokens, plan.num_decodes)
            self.chunks.observe(duration_s, plan.num_prefill_tokens, plan.num_decodes)

    def expected_s(self, plan: StepPlan) -> float | None:
        """The time that such a step should take; None when none like it ran before."""
        if not plan.sequences:
            return self._probe_s
        return self.chunks.expected_s(plan.num_prefill_tokens, plan.num_decodes)
