"""vLLM's scheduler with what a front may ask besides: to park, to run alone, to keep steps short.

A request that is left out of a step keeps its blocks and its state. Overrides methods of
vLLM's scheduler and calls others; they are not part of its public interface, which is why one
exact version of vLLM is required.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from vllm.v1.core.sched.scheduler import Scheduler

from baton.engines.vllm.sequences import VllmSequence


class StepOwner(Protocol):
    """The engine, as its scheduler knows it."""

    @property
    def finds_room(self) -> bool:
        """This step only finds blocks for prompts that other workers compute, and computes nothing:
        beside prompts that take all tokens of a step vLLM would not look at them."""

    def may_run(self, request: Any) -> bool:
        """Whether the request may take part in this step."""

    def prepare_step(self) -> int:
        """Draft for those that run. Returns the number of tokens that the step may compute."""

    def on_preempted(self, request: Any) -> None:
        """Its blocks were taken, and it waits to be computed again."""

    def on_scheduled(self, scheduled: Any) -> None:
        """The step is about to run."""


class BatonScheduler(Scheduler):  # type: ignore[misc]
    """The scheduler of one engine; `owner` is set once the engine is there."""

    owner: StepOwner | None = None
    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # vLLM would compute empty drafts for new decodes, which CUDA graphs of one size want.
        self.num_spec_tokens = 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step of those that may run."""
        owner = self.owner
        if owner is None:
            return super().schedule(*args, **kwargs)
        left_out = [request for request in self.running if not owner.may_run(request)]
        self.running = [request for request in self.running if request not in left_out]
        # Places in the batch that those keep; to find room takes none.
        num_kept = 0 if owner.finds_room else len(left_out)
        self.max_num_active_reqs = self.max_num_running_reqs - num_kept
        self.max_num_scheduled_tokens = owner.prepare_step()
        is_wanted = num_kept > 0 and (bool(self.running) or self._has_waiting(owner))
        output = super().schedule(*args, **kwargs)
        if is_wanted and not output.total_num_scheduled_tokens:
            # They hold all places or blocks: the least important one gives its own back.
            victim = max(left_out, key=lambda each: (each.priority, each.arrival_time))
            left_out.remove(victim)
            self._preempt_request(victim, 0.0)
        self.running += left_out
        owner.on_scheduled(output)
        return output

    def receive(self, request: Any) -> None:
        """A request's blocks have come: others find them in the cache from now on."""
        super()._handle_blocked_waiting_request(request)

    def make_spec_decoding_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing: the engine counts its drafts."""

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing after a step: reports take the stats."""

    def take_stats(self) -> Any:
        """vLLM's SchedulerStats, with its counts since they were taken last."""
        return super().make_stats()

    def _has_waiting(self, owner: StepOwner) -> bool:
        """A request waits for a place or for blocks, and for nothing else."""
        return any(
            owner.may_run(request) and request.status.name in ("WAITING", "PREEMPTED")
            for request in self.waiting
        )

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        if self.owner is not None and not self.owner.may_run(request):
            return False
        return bool(super()._handle_blocked_waiting_request(request))

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        if self.owner is not None:
            self.owner.on_preempted(request)


class Turns:
    """Whose turn the next step is; everybody's while there are no suspects.

    Suspects have steps of their own, and every other step is the others'.
    """

    def __init__(self) -> None:
        # The request that runs alone; empty = all but suspects do; None = everybody.
        self._alone: str | None = None
        # The one that ran alone last, and whether that was just now.
        self._last = ""
        self._was_alone = False

    @property
    def are_limited(self) -> bool:
        """There are suspects: not all that could run may."""
        return self._alone is not None

    def begin(self, seqs: Iterable[VllmSequence]) -> None:
        """Choose whose turn the next step is."""
        runnable = [seq for seq in seqs if not seq.is_parked and not seq.is_remote]
        suspects = list(dict.fromkeys(s.add.request_id for s in runnable if s.is_suspect))
        has_others = any(not seq.is_suspect for seq in runnable)
        if not suspects or (has_others and self._was_alone):
            self._alone = "" if suspects else None
            self._was_alone = False
            return
        behind = [name for name in suspects if name != self._last] or suspects
        self._alone = self._last = behind[0]
        self._was_alone = True

    def end(self) -> None:
        """The step is over: all that can run have their turn again."""
        self._alone = None

    def must_wait(self, seq: VllmSequence) -> bool:
        """The step that comes next is others'."""
        if self._alone is None:
            return False
        if not self._alone:
            return seq.is_suspect
        return seq.add.request_id != self._alone or not seq.is_suspect
