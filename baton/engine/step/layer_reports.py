"""Reports KV of prompts layer by layer, while the step that stores it computes the other layers.

A prompt that fits into one step would else leave for its decode worker only after that step, and
all of the transfer would stand between its first token and the second. Only full blocks are
reported, and not the last token's: that one may be computed again.
"""

import math
from collections.abc import Callable

from baton.engine.protocol.batch import LayerMarks
from baton.engine.protocol.messages import Progress, StepEvents
from baton.engine.protocol.runner import Runner, StagingRunner
from baton.engine.step.engine_state import EngineState
from baton.engine.step.step_plan import ScheduledSequence, StepPlan
from baton.engine.step.step_reporter import StepReporter

# The last group of layers is what is left to send when the step ends.
MAX_GROUPS = 8
# A report, and the frame that it becomes, cost as much as sending so many bytes takes.
MIN_GROUP_BYTES = 2 * 2**20


class LayerReports:
    """Those of one engine, unless its runner copies blocks when a step is over."""

    def __init__(
        self, state: EngineState, reporter: StepReporter, runner: Runner, min_group_bytes: int
    ) -> None:
        self._state = state
        self._reporter = reporter
        self._is_off = isinstance(runner, StagingRunner)
        self._min_group_bytes = min_group_bytes
        spec = state.info.kv_spec
        # A step of fewer tokens has no two groups.
        self.least_tokens = math.ceil(2 * min_group_bytes / spec.row_bytes) * spec.block_size

    def marks(
        self, step: int, plan: StepPlan, send: Callable[[StepEvents], None]
    ) -> LayerMarks | None:
        """Where the step reports, to `send`, what it has stored; None where it need not."""
        spec = self._state.info.kv_spec
        prompts = [] if self._is_off else [s for s in plan.sequences if _is_handed_over(s)]
        if not prompts:
            return None
        num_tokens = max(scheduled.num_new_tokens for scheduled in prompts)
        num_bytes = num_tokens // spec.block_size * spec.row_bytes
        num_layers = len(spec.layers)
        num_groups = min(MAX_GROUPS, num_layers, num_bytes // self._min_group_bytes)
        if num_groups < 2:
            return None

        def reached(mark: int) -> None:
            self._state.events.progress += [_progress(scheduled, mark) for scheduled in prompts]
            events = self._reporter.report(step)
            if events is not None:
                send(events)

        groups = range(1, num_groups + 1)
        return LayerMarks(tuple(num_layers * group // num_groups for group in groups), reached)


def _is_handed_over(scheduled: ScheduledSequence) -> bool:
    return scheduled.seq.request.kind == "prefill"


def _progress(scheduled: ScheduledSequence, num_layers: int) -> Progress:
    seq = scheduled.seq
    num_final = seq.num_computed_tokens + scheduled.num_new_tokens - scheduled.completes
    return Progress(seq.request.seq_id, num_final, num_layers=num_layers)
