"""Times the steps: for the reported load, the chunk policy, the progress page, and for bills."""

from baton.engine.kv.block_manager import BlockManager
from baton.engine.protocol.messages import StepEvents
from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.step_plan import StepPlan
from baton.system.clock import Clock
from baton.system.rate_meter import RateMeter

_WEIGHT_OF_NEWEST = 0.1
# After so many prefilled tokens, earlier ones count half.
_HALF_LIFE_TOKENS = 2048
# The least share of a step's time that is its prefill's: rows share the reading of the weights.
_LEAST_SHARE = 0.1
# The shortest step grows by this with each one, to follow a machine that became slower.
_DRIFT = 1.001
# Steps of decodes alone tell once in so many what blocks were held.
_HELD_EVERY = 8


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


class StepShares:
    """Divides the time of each step among its sequences, to the last microsecond (decision 0043).
    The manager is told the time, too: for how long sequences hold their blocks.

    A step's prefill has the share that its tokens cost lately, and divides it by tokens; its
    decodes have the rest, and divide it by rows. What a token costs does not depend on its context
    here.

    A step's time begins when the step before it was computed, or with its turn if there was nothing
    to compute: so all that a busy core does is on some bill.
    """

    def __init__(self, manager: BlockManager, chunks: ChunkPolicy) -> None:
        # Steps follow each other.
        self.is_busy = False
        self._manager = manager
        self._chunks = chunks
        # Time of steps that was not reported yet.
        self._busy_us = 0
        self._num_untold = 0

    def begin(self, now_us: int) -> None:
        """There was nothing to compute before now."""
        self._manager.now_us = now_us

    def charge(self, plan: StepPlan, now_us: int, events: StepEvents) -> int:
        """The step is computed: note what each of its sequences cost; returns its time."""
        step_us = now_us - self._manager.now_us
        self._manager.now_us = now_us
        self._busy_us += step_us
        self.is_busy = bool(plan.seq_ids)
        if plan.num_prefill_tokens:
            self._charge_mixed(plan, step_us, events)
        elif plan.num_draft_tokens:
            events.spent_us = divide(step_us, plan.token_counts())
        elif plan.seq_ids:
            events.spent_us = divide_evenly(step_us, len(plan.seq_ids))
        events.spent_seq_ids = plan.seq_ids
        return step_us

    def tell_held(self, plan: StepPlan, events: StepEvents) -> None:
        """The step is committed: note what blocks its sequences hold, if it is time. The manager
        notes it of those that have ended."""
        self._num_untold += 1
        if self._num_untold == _HELD_EVERY or plan.num_prefill_tokens:
            self._num_untold = 0
            now_us = self._manager.now_us
            tables = [seq.table for seq in plan.all]
            events.held_block_us = [table.take_block_us(now_us) for table in tables]
            events.held_blocks = [table.num_blocks for table in tables]

    def take_busy_us(self) -> int:
        """The time of all steps since the last call, probes included."""
        busy_us, self._busy_us = self._busy_us, 0
        return busy_us

    def _charge_mixed(self, plan: StepPlan, step_us: int, events: StepEvents) -> None:
        share = self._chunks.prefill_share(plan.num_prefill_tokens, plan.num_decodes)
        prefill_us = round(step_us * share)
        counts = plan.token_counts()
        prefills = [counts[place] for place in plan.prefills]
        decodes = [count for place, count in enumerate(counts) if place not in plan.prefills]
        of_prefills = iter(divide(prefill_us, prefills))
        of_decodes = iter(divide(step_us - prefill_us, decodes))
        for place, count in enumerate(counts):
            is_prefill = place in plan.prefills
            spent_us = next(of_prefills if is_prefill else of_decodes)
            events.spent_us.append(spent_us)
            if is_prefill:
                events.prefills.append((place, spent_us * plan.prefills[place] // count))


class StepTimer:
    """Measures one turn at a time: `turn`, then `begin`, `computed` and `end`, or `idle`.

    The reported load counts a step as bills do, with what comes between two steps: tokens are so
    far apart. The chunk policy and the progress page are about the step that has begun.
    """

    def __init__(self, clock: Clock, chunks: ChunkPolicy, shares: StepShares) -> None:
        self.chunks = chunks
        self.shares = shares
        self.meter = LoadMeter()
        self._clock = clock
        self._began_at = 0.0
        self._step_s = 0.0
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
        self._step_s = self.shares.charge(plan, int(self._clock.now() * 1e6), events) / 1e6

    def end(self, plan: StepPlan, events: StepEvents) -> None:
        """The step that has begun ran as planned, and is committed."""
        now = self._clock.now()
        self.shares.tell_held(plan, events)
        duration_s = now - self._began_at
        if plan.is_probe:
            self._probe_s = duration_s
            self.meter.observe_short(self._step_s)
        else:
            self.meter.observe(self._step_s, plan.num_prefill_tokens, plan.num_decodes)
            self.chunks.observe(duration_s, plan.num_prefill_tokens, plan.num_decodes)

    def expected_s(self, plan: StepPlan) -> float | None:
        """The time that such a step should take; None when none like it ran before."""
        if plan.is_probe:
            return self._probe_s
        return self.chunks.expected_s(plan.num_prefill_tokens, plan.num_decodes)


def divide(total: int, weights: list[int]) -> list[int]:
    """Whole parts of a total in proportion to weights above 0; their sum is the total."""
    whole = sum(weights)
    parts, done, weighed = [], 0, 0
    for weight in weights:
        weighed += weight
        end = total * weighed // whole
        parts.append(end - done)
        done = end
    return parts


def divide_evenly(total: int, num_parts: int) -> list[int]:
    """Whole parts of a total that differ by one at most; their sum is the total."""
    part, num_larger = divmod(total, num_parts)
    return [part + 1] * num_larger + [part] * (num_parts - num_larger)
