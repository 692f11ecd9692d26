"""Times the steps: for the reported load, for the chunk policy and for the progress page."""

from baton.engine.step.chunk_policy import ChunkPolicy
from baton.engine.step.load_report import LoadMeter
from baton.engine.step.step_plan import StepPlan
from baton.system.clock import Clock


class StepTimer:
    """Measures one step at a time, from `begin` to `end`."""

    def __init__(self, clock: Clock, chunks: ChunkPolicy) -> None:
        self.chunks = chunks
        self.meter = LoadMeter()
        self._clock = clock
        self._began_at = 0.0
        self._probe_s: float | None = None

    def begin(self) -> None:
        self._began_at = self._clock.now()

    def end(self, plan: StepPlan) -> None:
        """The step that has begun ran as planned."""
        duration_s = self._clock.now() - self._began_at
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
