"""The reasons of a pick in numbers: what its choice costs, what others would have cost, and why
workers could not be chosen. Text is made only where somebody reads it (baton/wire/pick_reasons.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

from baton.wire.v1 import router_pb2
from services.router.fleet.views import WorkerView
from services.router.pick.costs import Costs, is_far

# The other choices and the workers that a pick names; it counts the rest.
MAX_OTHERS = 3
MAX_LEFT_OUT = 8


class LeftOut(NamedTuple):
    """A worker that could not be chosen, and why."""

    worker_id: str
    reason: str


class Choice(NamedTuple):
    """A pair that could have been picked, and its costs; no `prefill` = local prefill.

    A decode step there would take `step_s` with the request.
    """

    decode: WorkerView
    prefill: WorkerView | None
    costs: Costs
    step_s: float

    @property
    def first_token_s(self) -> float:
        """The predicted time from the pick to the first token; 0 where the rate of prefill was not
        measured."""
        return self.costs.first_token_s if self._computing.speed.is_measured else 0.0

    @property
    def is_far(self) -> bool:
        """Return whether its handoff leaves the zone."""
        return self.prefill is not None and is_far(self.prefill, self.decode)

    @property
    def _computing(self) -> WorkerView:
        return self.prefill or self.decode

    def to_wire(self) -> router_pb2.PickChoice:
        computing, costs = self._computing, self.costs
        return router_pb2.PickChoice(
            decode_worker_id=self.decode.worker_id,
            prefill_worker_id=self.prefill.worker_id if self.prefill else "",
            num_cached_tokens=computing.num_cached_tokens,
            is_measured=computing.speed.is_measured,
            wait_s=costs.wait_s,
            prefill_s=costs.prefill_s,
            handoff_s=costs.handoff_s,
            steps_s=costs.steps_s,
            itl_s=costs.itl_s,
            streams_s=costs.streams_s,
            step_s=self.step_s,
            zone_s=costs.zone_s,
            decode_zone=self.decode.zone,
            prefill_zone=self.prefill.zone if self.prefill else "",
        )


class Reasons(NamedTuple):
    """Everything that a pick looked at. The chosen pair is None when there was none.

    `others` have no order yet; `num_unseen` workers were left out before.
    """

    num_prompt_tokens: int
    left_out: Sequence[LeftOut]
    chosen: Choice | None = None
    others: Sequence[Choice] = ()
    num_unseen: int = 0

    def _show_near(self, others: list[Choice]) -> None:
        """Let the best choice within a zone be among those that are named, if the chosen one is
        not: the reason of an overflow."""
        if self.chosen is None or not self.chosen.is_far or not all(o.is_far for o in others):
            return
        near = [other for other in self.others if not other.is_far]
        if near:
            others[-1] = min(near, key=lambda each: sum(each.costs))

    def to_wire(self) -> router_pb2.PickReasons:
        """The chosen pair, the next best ones, and some of the workers that were left out."""
        others = sorted(self.others, key=lambda each: sum(each.costs))[:MAX_OTHERS]
        self._show_near(others)
        left_out = self.left_out[:MAX_LEFT_OUT]
        num_named = len(others) + len(left_out)
        choices = [self.chosen, *others] if self.chosen else others
        return router_pb2.PickReasons(
            choices=[choice.to_wire() for choice in choices],
            left_out=[router_pb2.LeftOutWorker(worker_id=w, reason=why) for w, why in left_out],
            num_omitted=self.num_unseen + len(self.others) + len(self.left_out) - num_named,
            num_prompt_tokens=self.num_prompt_tokens,
        )
