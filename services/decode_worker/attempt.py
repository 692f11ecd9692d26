"""One Submit of one gateway: its choices, its deadline, and its one end.

An attempt ends in exactly one way: every choice finished or was cancelled, it failed (refused when
nothing was sent yet, else a failed finish for every open choice), it was cancelled as a whole, or
its gateway is gone.
"""

import asyncio
from collections.abc import Callable, Iterable

from baton.engine.protocol.messages import Grammar
from baton.wire import failures
from baton.wire.engine_time import add_time
from baton.wire.v1 import failure_pb2, worker_pb2
from baton.worker.cancels import observe_cancel
from baton.worker.deps import WorkerDeps
from services.decode_worker.attempt_output import AttemptOutput
from services.decode_worker.attempt_request import AttemptRequest
from services.decode_worker.choice import ChoiceRun
from services.decode_worker.gateway_link import GatewayLink
from services.decode_worker.prefill_links import PrefillLinks


class Attempt:
    """Owns the choices of one Submit. `on_end` is called once it holds nothing any more."""

    def __init__(
        self,
        request: AttemptRequest,
        link: GatewayLink,
        deps: WorkerDeps,
        links: PrefillLinks,
        on_end: Callable[["Attempt"], None],
    ) -> None:
        self.request = request
        self._deps = deps
        self._links = links
        self._on_end = on_end
        self._output = AttemptOutput(request, link, deps)
        self._choices = {
            choice: ChoiceRun(choice, self, self._output, deps) for choice in request.choices
        }
        # They start when the first one's prompt is here.
        self._later: list[ChoiceRun] = []
        # They were cancelled, and end when their prompt, which others wait for, is here.
        self._unwanted: list[ChoiceRun] = []
        self._is_ended = False
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Hand the choices to the engine, once their grammar, if any, has passed the gate."""
        if self.request.deadline_s is not None:
            left_s = max(self.request.deadline_s - self._deps.clock.now(), 0.0)
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(left_s, self._on_deadline)
        grammar = self.request.sampling.grammar
        if grammar is None:
            self._start_choices()
        else:
            self._deps.grammar_gate.check(grammar, self._on_grammar)

    def credit(self, choice: int, up_to_index: int) -> None:
        """Unknown choices are ignored."""
        if (run := self._choices.get(choice)) is not None:
            run.credit(up_to_index)

    def cancel(self) -> None:
        """The gateway wants no more of it: free everything, and say so."""
        phases = [run.phase for run in self._open_choices()]
        open_choices = self._abort_open(failures.Cancelled("cancelled by the gateway"))
        for run in open_choices:
            finish = worker_pb2.Finish(
                reason="cancelled", num_output_tokens=run.num_output_tokens, engine=run.bill()
            )
            self._output.finish(run.choice, finish)
        self._output.flush()
        if open_choices:
            observe_cancel(self._deps, phases[0], [run.seq_id for run in open_choices])
        self._end("cancelled")

    def cancel_choices(self, choices: Iterable[int]) -> None:
        """The gateway wants no more of these; unknown choices are ignored."""
        for choice in set(choices):
            run = self._choices.get(choice)
            if run is not None and not run.is_ended:
                self._cancel_choice(run)
        if not self._is_ended and all(run in self._unwanted for run in self._open_choices()):
            self.cancel()

    def drop(self) -> None:
        """The gateway is gone: free everything, say nothing."""
        self._abort_open(failures.Cancelled("the gateway is gone"))
        self._end("gateway_lost")

    def failed(self, error: failures.BatonError) -> None:
        """End the whole attempt. Nothing happens when it has ended already."""
        if self._is_ended:
            return
        self._output.fail(error)
        open_choices = self._abort_open(error)
        if self._has_sent:
            for run in open_choices:
                finish = worker_pb2.Finish(
                    num_output_tokens=run.num_output_tokens,
                    failure=failures.to_wire(error),
                    engine=run.bill(),
                )
                self._output.finish(run.choice, finish)
            self._output.flush()
        else:
            self._output.refuse(error, _sum([run.bill() for run in open_choices]))
        self._end(error.reason)

    # What choices tell (ChoiceOwner).

    def prompt_is_here(self) -> None:
        self._start_later()
        unwanted, self._unwanted = self._unwanted, []
        for run in unwanted:
            run.cancel()

    def ended(self, run: ChoiceRun, reason: str) -> None:
        if run in self._unwanted:
            reason = "cancelled"
        is_last = not self._open_choices()
        finish = worker_pb2.Finish(
            reason=reason,
            num_output_tokens=run.num_output_tokens,
            engine=run.bill(),
            vector=run.vector,
        )
        self._output.finish(run.choice, finish, is_last=is_last)
        self._output.flush()
        if is_last:
            self._end(reason)
        elif run not in self._later:
            self._start_later()

    @property
    def _has_sent(self) -> bool:
        """Frames of this attempt were written, or wait for the writer."""
        return self._output.has_more_than_tokens or any(
            run.num_output_tokens > self.request.num_received(choice)
            for choice, run in self._choices.items()
        )

    def _open_choices(self) -> list[ChoiceRun]:
        return [run for run in self._choices.values() if not run.is_ended]

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
        leader, *others = self._open_choices()
        if not self.request.shares_prompt:
            # Sequences of their own, with the same prompt: one brings it, the others find it here.
            self._later = others
            leader.start(self._links)
            return
        leader.start(self._links, others)
        # A search begins with all choices; those that ended in earlier attempts are not wanted.
        self.cancel_choices(self.request.submit.ended_choices)

    def _start_later(self) -> None:
        later, self._later = self._later, []
        for run in later:
            if not run.is_ended:
                run.start(self._links)

    def _cancel_choice(self, run: ChoiceRun) -> None:
        """End it, unless its handoff brings the prompt of others."""
        others = [other for other in self._open_choices() if other is not run]
        if run.is_handing_over and self.request.shares_prompt and others:
            if run not in self._unwanted:
                self._unwanted.append(run)
        else:
            run.cancel()

    def _on_deadline(self) -> None:
        self.failed(failures.DeadlineExceeded("the deadline passed"))

    def _abort_open(self, error: failures.BatonError) -> list[ChoiceRun]:
        open_choices = self._open_choices()
        for run in open_choices:
            run.abort(error)
        return open_choices

    def _end(self, reason: str) -> None:
        assert not self._is_ended, "an attempt ends once"
        assert not self._open_choices()
        self._is_ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self.request.sampling.grammar is not None:
            self._deps.grammar_gate.withdraw(self._on_grammar)
        self._output.end(reason, sum(run.num_output_tokens for run in self._choices.values()))
        self._on_end(self)


def _sum(bills: Iterable[failure_pb2.EngineTime]) -> failure_pb2.EngineTime:
    total = failure_pb2.EngineTime()
    for bill in bills:
        add_time(total, bill)
    return total
