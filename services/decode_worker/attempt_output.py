"""The output of one attempt: frames for its gateway, stages for its span, one word for the routers.

Stages are those of the attempt's first choice and cut the time from submit to the last finish
without gap or overlap:

    remote   admit, prefill.queue, prefill.compute, handoff, decode
    local    prefill.queue, prefill.compute, decode

`handoff` is what the prefill elsewhere cost beyond its own queue and compute, up to the start of
decoding. Tokens go into `merge` and leave at the end of the engine's step; everything else that
cannot wait for a step is followed by `flush`.
"""

from opentelemetry.trace import SpanKind

from baton.runtime import logs
from baton.runtime.telemetry import StageTimer, start_span
from baton.wire import failures
from baton.wire.v1 import failure_pb2, handoff_pb2, worker_pb2
from baton.worker.deps import WorkerDeps
from services.decode_worker.attempt_request import AttemptRequest
from services.decode_worker.gateway_link import GatewayLink

# The gateway asks for another worker then (decision 0004).
_REFUSALS = ("no_room", "prefill_refused")

_log = logs.get("decode_worker.attempt")


class AttemptOutput:
    """Reports what the choices of one Submit do; decides nothing."""

    def __init__(self, request: AttemptRequest, link: GatewayLink, deps: WorkerDeps) -> None:
        submit = request.submit
        self.request = request
        self.merge = link.merge
        # Something other than output tokens has been written.
        self.has_more_than_tokens = False
        self.span = start_span(
            "decode",
            traceparent=submit.traceparent,
            request_id=submit.request_id,
            kind=SpanKind.SERVER,
            attributes={
                "baton.worker_id": deps.worker_id,
                "baton.epoch": submit.epoch,
                "baton.num_prompt_tokens": request.num_prompt_tokens,
                "baton.prefill_endpoint": "local"
                if request.prefills_here
                else submit.prefill_endpoint,
            },
        )
        self._link = link
        self._deps = deps
        self._timer = StageTimer(deps.clock)
        self._first_choice = request.choices[0]
        self._is_reported = False
        self._is_refusal = False
        # Of choices whose prompt is computed here now.
        self._num_cached_tokens: dict[int, int] = {}

    def flush(self) -> None:
        """Write what is in `merge` now instead of at the end of the engine's step."""
        self._link.wake()

    def report(self) -> None:
        """Tell the routers once that the request is in the load, or will never be."""
        if not self._is_reported:
            self._is_reported = True
            self._deps.reports.accepted(self.request.request_id)

    def promised(self, choice: int, num_cached_tokens: int) -> None:
        """The engine has room for a prompt that is prefilled elsewhere."""
        self._took_prompt(choice, num_cached_tokens)
        self.report()
        if choice == self._first_choice:
            wait_s = self._timer.mark("admit")
            # The check of a grammar is a part of it.
            if self.request.sampling.grammar is None:
                self._deps.reports.observe_step_wait(wait_s)

    def started_here(self, choice: int, num_cached_tokens: int) -> None:
        """The prompt of this choice is computed here from now on."""
        self._num_cached_tokens[choice] = num_cached_tokens
        self._took_prompt(choice, num_cached_tokens)
        self._reached_here(choice, "prefill.queue")

    def prefilled_here(self, choice: int) -> None:
        """The prompt of this choice is computed; its first token comes next."""
        self._reached_here(choice, "prefill.compute")
        num_cached_tokens = self._num_cached_tokens.pop(choice)
        self._add_summary(choice, worker_pb2.PrefillSummary(num_cached_tokens=num_cached_tokens))

    def prefilled(self, choice: int, frame: handoff_pb2.FirstTokens, num_blocks: int) -> None:
        """The prompt was computed elsewhere; its first token comes next, then `num_blocks`."""
        if frame.stages and choice == self._first_choice:
            self._mark_remote_stages(frame)
        summary = worker_pb2.PrefillSummary(
            num_cached_tokens=frame.num_cached_tokens, num_blocks_received=num_blocks
        )
        self._add_summary(choice, summary)

    def reached(self, choice: int, stage: str) -> None:
        """A stage ends now."""
        self.report()
        if choice == self._first_choice:
            self._timer.mark(stage)

    def prompt_logprobs(self, choice: int, logprobs: worker_pb2.TokenLogprobs) -> None:
        """Logprobs of the next prompt token."""
        self.has_more_than_tokens = True
        self.merge.add_prompt_logprobs((self.request.submit.handle, choice), logprobs)

    def finish(self, choice: int, finish: worker_pb2.Finish, *, is_last: bool = False) -> None:
        """A choice has ended; the `is_last` of an attempt tells the stages."""
        self.has_more_than_tokens = True
        if is_last:
            self._timer.mark("decode")
            finish.stages.extend(self._timer.to_wire())
        self.merge.add_finish((self.request.submit.handle, choice), finish)

    def fail(self, error: failures.BatonError) -> None:
        """The attempt has failed; its choices or its refusal tell the gateway."""
        submit = self.request.submit
        _log.warning(
            "attempt_failed",
            request_id=submit.request_id,
            epoch=submit.epoch,
            reason=error.reason,
            detail=error.log_detail,
        )
        self.span.fail(error.reason)

    def refuse(self, error: failures.BatonError, spent: failure_pb2.EngineTime) -> None:
        """Nothing of this attempt was written, and nothing will be."""
        self._is_refusal = error.reason in _REFUSALS
        refuse(self._link, self.request.submit, error, spent)

    def end(self, reason: str, num_output_tokens: int) -> None:
        """The attempt is over. A refusal for room was none, and its span is not sent."""
        if reason == "cancelled":
            self.span.refuse(reason)
        self.span.set("baton.finish_reason", reason)
        self.span.set("baton.num_output_tokens", num_output_tokens)
        if not self._is_refusal:
            self.span.end()
        self.report()

    def _add_summary(self, choice: int, summary: worker_pb2.PrefillSummary) -> None:
        if choice == self._first_choice:
            summary.stages.extend(self._timer.to_wire())
        self.merge.add_prefill((self.request.submit.handle, choice), summary)

    def _reached_here(self, choice: int, stage: str) -> None:
        start_s = self._timer.started_s + self._timer.wall_s
        self.reached(choice, stage)
        if choice == self._first_choice:
            request_id = self.request.request_id
            start_span(stage, parent=self.span, request_id=request_id, start_s=start_s).end()

    def _mark_remote_stages(self, frame: handoff_pb2.FirstTokens) -> None:
        """Split the time since the promise into the peer's stages and the handoff's own share."""
        left_s = self._timer.mark("handoff")
        del self._timer.stages["handoff"]
        for stage in frame.stages:
            spent_s = min(stage.duration_us / 1e6, left_s)
            self._timer.stages[stage.name] = spent_s
            left_s -= spent_s
        self._timer.stages["handoff"] = left_s

    def _took_prompt(self, choice: int, num_cached_tokens: int) -> None:
        self._deps.metrics.took_prompt(self.request.num_tokens(choice), num_cached_tokens)


def refuse(
    link: GatewayLink,
    submit: worker_pb2.Submit,
    error: failures.BatonError,
    spent: failure_pb2.EngineTime | None = None,
) -> None:
    """Tell the gateway that nothing comes of its submit, and what was spent on it nevertheless."""
    _log.info(
        "submit_refused",
        request_id=submit.request_id,
        epoch=submit.epoch,
        reason=error.reason,
        detail=error.log_detail,
    )
    refused = worker_pb2.Refused(
        request_id=submit.request_id,
        epoch=submit.epoch,
        handle=submit.handle,
        failure=failures.to_wire(error),
        engine=spent,
    )
    link.send(worker_pb2.WorkerFrame(refused=refused))
