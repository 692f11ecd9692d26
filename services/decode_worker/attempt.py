"""One Submit of one gateway: its choices, its stages, its deadline, and its one end.

An attempt ends in exactly one way: every choice finished or was cancelled, it failed (refused when
nothing was sent yet, else a failed finish for every open choice), it was cancelled as a whole, or
its gateway is gone. Stages are those of its first choice and cut the time from submit to the last
finish without gap or overlap:

    remote   admit, prefill.queue, prefill.compute, handoff, decode
    local    prefill.queue, prefill.compute, decode

`handoff` is what the prefill elsewhere cost beyond its own queue and compute, up to the start of
decoding.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from baton.engine.protocol.messages import Grammar
from baton.runtime import logs
from baton.runtime.telemetry import StageTimer, start_span
from baton.wire import failures
from baton.wire.v1 import handoff_pb2, worker_pb2
from baton.worker.cancels import observe_cancel
from baton.worker.parts import WorkerParts
from services.decode_worker.attempt_request import AttemptRequest
from services.decode_worker.choice import ChoiceRun
from services.decode_worker.prefill_link import PrefillLinks
from services.decode_worker.step_merge import StepMerge

_log = logs.get("decode_worker.attempt")


class AttemptOutlet(Protocol):
    """The gateway's session."""

    merge: StepMerge

    def wake(self) -> None:
        """`merge` has something to write."""

    def refuse(self, submit: worker_pb2.Submit, error: failures.BatonError) -> None:
        """Nothing of this attempt was sent, and nothing will be."""

    def ended(self, attempt: "Attempt") -> None:
        """It holds nothing any more."""


class Attempt:
    """Owns the choices of one Submit."""

    def __init__(
        self,
        request: AttemptRequest,
        outlet: AttemptOutlet,
        parts: WorkerParts,
        links: PrefillLinks,
    ) -> None:
        submit = request.submit
        self.request = request
        self._outlet = outlet
        self._parts = parts
        self._timer = StageTimer(parts.clock)
        self._span = start_span(
            "decode",
            traceparent=submit.traceparent,
            request_id=submit.request_id,
            attributes={
                "baton.worker_id": parts.worker_id,
                "baton.epoch": submit.epoch,
                "baton.num_prompt_tokens": request.num_prompt_tokens,
                "baton.prefill_endpoint": "local"
                if request.prefills_here
                else submit.prefill_endpoint,
            },
        )
        self._choices = {
            choice: ChoiceRun(request, choice, self, parts, links) for choice in request.choices
        }
        self._first_choice = request.choices[0]
        # They wait for the first one's prompt.
        self._later: list[ChoiceRun] = []
        self._has_sent = False
        self._is_ended = False
        self._is_reported = False
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Hand the choices to the engine, once their grammar, if any, has passed the gate."""
        if self.request.deadline_s is not None:
            left_s = max(self.request.deadline_s - self._parts.clock.now(), 0.0)
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(left_s, self._on_deadline)
        grammar = self.request.sampling.grammar
        if grammar is None:
            self._start_choices()
        else:
            self._parts.grammar_gate.check(grammar, self._on_grammar)

    def credit(self, choice: int, up_to_index: int) -> None:
        """Unknown choices are ignored."""
        if (run := self._choices.get(choice)) is not None:
            run.credit(up_to_index)

    def cancel(self) -> None:
        """The gateway wants no more of it: free everything, and say so."""
        open_choices = self._abort_open(failures.Cancelled("cancelled by the gateway"))
        for run in open_choices:
            finish = worker_pb2.Finish(reason="cancelled", num_output_tokens=run.num_output_tokens)
            self._outlet.merge.add_finish((self.request.submit.handle, run.choice), finish)
        self._outlet.wake()
        if open_choices:
            seq_ids = [run.seq_id for run in open_choices]
            observe_cancel(self._parts, open_choices[0].phase, seq_ids)
        self._end("cancelled")

    def cancel_choices(self, choices: Iterable[int]) -> None:
        """The gateway wants no more of these; unknown choices are ignored."""
        for choice in set(choices):
            if choice in self._choices and not self._is_ended:
                self._choices[choice].cancel()
        if not self._is_ended and not any(run.is_wanted for run in self._choices.values()):
            self.cancel()

    def drop(self) -> None:
        """The gateway is gone: free everything, say nothing."""
        self._abort_open(failures.Cancelled("the gateway is gone"))
        self._end("gateway_lost")

    # What choices tell (ChoiceOwner).

    def reached(self, choice: int, stage: str) -> None:
        self._report()
        if choice == self._first_choice:
            start_s = self._timer.started_s + self._timer.wall_s
            self._timer.mark(stage)
            if stage.startswith("prefill."):
                self._local_span(stage, start_s)

    def prefilled(self, choice: int, frame: handoff_pb2.FirstTokens, num_blocks: int) -> None:
        summary = worker_pb2.PrefillSummary(
            num_cached_tokens=frame.num_cached_tokens, num_blocks_received=num_blocks
        )
        if choice == self._first_choice:
            if frame.stages:
                self._mark_remote_stages(frame)
            summary.stages.extend(self._timer.to_wire())
        self._outlet.merge.add_prefill((self.request.submit.handle, choice), summary)

    def token(
        self, choice: int, index: int, token_id: int, logprobs: worker_pb2.TokenLogprobs | None
    ) -> None:
        self._has_sent = True
        key = (self.request.submit.handle, choice)
        self._outlet.merge.add_token(key, index, token_id, logprobs)
        self._outlet.wake()

    def judged(self, choice: int, logprobs: worker_pb2.TokenLogprobs) -> None:
        self._has_sent = True
        self._outlet.merge.add_judged((self.request.submit.handle, choice), logprobs)
        self._outlet.wake()

    def finished(self, choice: int, finish: worker_pb2.Finish) -> None:
        self._has_sent = True
        is_last = all(run.is_ended for run in self._choices.values())
        if is_last:
            self._timer.mark("decode")
            finish.stages.extend(self._timer.to_wire())
        self._outlet.merge.add_finish((self.request.submit.handle, choice), finish)
        self._outlet.wake()
        if is_last:
            self._end(finish.reason)
        elif self._choices[choice] not in self._later:
            self.prompt_is_here()

    def prompt_is_here(self) -> None:
        later, self._later = self._later, []
        for run in later:
            if not run.is_ended:
                run.start(self._span)

    def failed(self, error: failures.BatonError) -> None:
        """End the whole attempt. Nothing happens when it has ended already."""
        if self._is_ended:
            return
        submit = self.request.submit
        _log.warning(
            "attempt_failed",
            request_id=submit.request_id,
            epoch=submit.epoch,
            reason=error.reason,
            detail=error.log_detail,
        )
        self._span.fail(error.reason)
        open_choices = self._abort_open(error)
        if self._has_sent:
            for run in open_choices:
                finish = worker_pb2.Finish(
                    num_output_tokens=run.num_output_tokens, failure=failures.to_wire(error)
                )
                self._outlet.merge.add_finish((submit.handle, run.choice), finish)
            self._outlet.wake()
        else:
            self._outlet.refuse(submit, error)
        self._end(error.reason)

    def _on_grammar(self, outcome: Grammar | failures.BatonError) -> None:
        if self._is_ended:
            return
        if isinstance(outcome, failures.BatonError):
            self.failed(outcome)
            return
        self.request.use_grammar(outcome)
        self._start_choices()

    def _start_choices(self) -> None:
        # The gateway may have cancelled some while their grammar was tried.
        runs = [run for run in self._choices.values() if not run.is_ended]
        if not self.request.shares_prompt:
            # Sequences of their own, with the same prompt: one brings it, the others find it here.
            first, *self._later = runs
            first.start(self._span)
            return
        leader, *forks = runs
        leader.start(self._span, forks)
        # A search needs them all, and nobody those that the gateway has already.
        self.cancel_choices(self.request.submit.ended_choices)

    def _on_deadline(self) -> None:
        self.failed(failures.DeadlineExceeded("the deadline passed"))

    def _abort_open(self, error: failures.BatonError) -> list[ChoiceRun]:
        open_choices = [run for run in self._choices.values() if not run.is_ended]
        for run in open_choices:
            run.abort(error)
        return open_choices

    def _end(self, reason: str) -> None:
        assert not self._is_ended, "an attempt ends once"
        assert all(run.is_ended for run in self._choices.values())
        self._is_ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self.request.sampling.grammar is not None:
            self._parts.grammar_gate.withdraw(self._on_grammar)
        self._span.set("baton.finish_reason", reason)
        self._span.set(
            "baton.num_output_tokens", sum(run.num_output_tokens for run in self._choices.values())
        )
        self._span.end()
        self._report()
        self._outlet.ended(self)

    def _report(self) -> None:
        """Tell the routers once that the request is in the load, or will never be."""
        if not self._is_reported:
            self._is_reported = True
            self._parts.reports.accepted(self.request.request_id)

    def _local_span(self, stage: str, start_s: float) -> None:
        request_id = self.request.request_id
        start_span(stage, parent=self._span, request_id=request_id, start_s=start_s).end()

    def _mark_remote_stages(self, frame: handoff_pb2.FirstTokens) -> None:
        """Split the time since the promise into the peer's stages and the handoff's own share."""
        left_s = self._timer.mark("handoff")
        del self._timer.stages["handoff"]
        for stage in frame.stages:
            spent_s = min(stage.duration_us / 1e6, left_s)
            self._timer.stages[stage.name] = spent_s
            left_s -= spent_s
        self._timer.stages["handoff"] = left_s
