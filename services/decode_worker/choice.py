"""One choice of one attempt: a sequence in the engine and, when prefill is elsewhere, its handoff.

    local    add -> started -> tokens -> finished
    remote   add -> admitted -> Prefill -> accepted, bind -> bound, blocks -> complete, start
             -> tokens -> finished          (the first token is forwarded as soon as it is known)
    fork     (another choice's prompt) -> tokens -> finished

Choices that begin at the same place have one leader: its prompt and its handoff serve all of them.
In a beam search all tokens come at the end. Knows no gateway stream.
"""

from collections.abc import Sequence
from typing import Protocol

from baton.engine.protocol.messages import (
    AddSequence,
    Admitted,
    Bind,
    Bound,
    Credit,
    Finished,
    Fork,
    Progress,
    SequenceRefused,
    Start,
    Started,
    TokenLogprobs,
)
from baton.runtime.telemetry import Span
from baton.wire import failures
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import handoff_pb2, worker_pb2
from baton.worker.dispatch import SequenceEvent, sequence_failure, to_wire
from baton.worker.parts import WorkerParts
from services.decode_worker.attempt_request import AttemptRequest
from services.decode_worker.prefill_link import PrefillLinks
from services.decode_worker.remote_prefill import RemotePrefill, ended_at_once

_COMPLETE = ("stop", "length")


class ChoiceOwner(Protocol):
    """What a choice tells its attempt."""

    def reached(self, choice: int, stage: str) -> None:
        """The stage that ends now."""

    def prefilled(self, choice: int, frame: handoff_pb2.FirstTokens, num_blocks: int) -> None:
        """The first token comes next. `frame` tells cached tokens and the prefill's own stages."""

    def token(
        self, choice: int, index: int, token_id: int, logprobs: worker_pb2.TokenLogprobs | None
    ) -> None: ...

    def judged(self, choice: int, logprobs: worker_pb2.TokenLogprobs) -> None:
        """Of the next prompt token."""

    def prompt_is_here(self) -> None:
        """The choice decodes now: others find its prompt in the cache."""

    def finished(self, choice: int, finish: worker_pb2.Finish) -> None:
        """The choice has ended by itself and holds nothing."""

    def failed(self, error: failures.BatonError) -> None:
        """The attempt cannot go on; the choice holds what it has until `abort`."""


class ChoiceRun:
    """Listens to its sequence. `num_output_tokens` counts earlier attempts' tokens too."""

    def __init__(
        self,
        request: AttemptRequest,
        choice: int,
        owner: ChoiceOwner,
        parts: WorkerParts,
        links: PrefillLinks,
    ) -> None:
        emitted_ids = request.emitted_ids(choice)
        self.choice = choice
        self.num_output_tokens = request.num_received(choice)
        self.is_ended = False
        # "grammar" (to be tried), "queue", "prefill", "handoff" or "decode".
        self.phase = "grammar"
        # The gateway takes output tokens up to this index (exclusive); the engine is told once it
        # knows the sequence.
        self._credit = self.num_output_tokens + request.submit.initial_credit_tokens
        self._is_added = False
        self._num_emitted = len(emitted_ids) // TOKEN_BYTES
        self._token_ids = request.prompt_ids + emitted_ids
        self._request = request
        self._owner = owner
        self._parts = parts
        self._links = links
        self._forks: Sequence[ChoiceRun] = ()
        self.seq_id = parts.dispatcher.open(self, request.submit.request_id)
        # Set while this sequence's own prefill runs here.
        self._num_cached_tokens: int | None = None
        self._prefill: RemotePrefill | None = None
        self._is_handing_over = False
        self._is_unwanted = False
        self._span: Span | None = None

    @property
    def is_wanted(self) -> bool:
        """It has not ended, and nobody cancelled it."""
        return not self.is_ended and not self._is_unwanted

    @property
    def fork_choices(self) -> list[int]:
        """Choices that take their first token with this one's; beams come from its likeliest."""
        return [] if self._request.is_search else [run.choice for run in self._forks]

    def start(self, span: Span, forks: Sequence["ChoiceRun"] = ()) -> None:
        """Add the sequence to the engine, as the leader of `forks`. `span` is the attempt's."""
        self._span = span
        self.phase = "queue"
        self._forks = forks
        self._is_handing_over = not self._request.prefills_here
        submit = self._request.submit
        runs = (self, *forks)
        least_credit = min(run._credit for run in runs)
        self._parts.dispatcher.send(
            AddSequence(
                seq_id=self.seq_id,
                request_id=submit.request_id,
                choice=self.choice,
                kind="local" if self._request.prefills_here else "remote",
                token_ids=self._token_ids,
                num_emitted=self._num_emitted,
                block_hashes=self._request.block_hashes,
                cache_key=submit.cache_key,
                sampling=self._request.sampling_of(self.choice),
                credit=least_credit,
                priority=submit.priority,
                deadline=self._request.deadline_s,
                forks=tuple(Fork(run.seq_id, run.choice) for run in forks),
                is_suspect=submit.is_suspect,
            )
        )
        for run in runs:
            run._is_added = True
            if run._credit > least_credit:
                run.credit(run._credit)

    def credit(self, up_to_index: int) -> None:
        """The gateway takes output tokens up to this index (exclusive)."""
        self._credit = max(self._credit, up_to_index)
        if self._is_added and not self.is_ended:
            self._parts.dispatcher.send(Credit(self.seq_id, up_to_index))

    def abort(self, error: failures.BatonError) -> None:
        """Free everything on both sides, whatever the state. Safe to call again."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._prefill is not None:
            self._prefill.end(error)
        self._parts.dispatcher.abort(self.seq_id)

    def cancel(self) -> None:
        """The gateway wants no more of this choice; its forks still get what they need of it."""
        if self.is_ended:
            return
        if self._is_handing_over and any(run.is_wanted for run in self._forks):
            self._is_unwanted = True
            return
        self.abort(failures.Cancelled("the choice was cancelled"))
        self._tell_end("cancelled")

    # What the engine tells (SequenceListener).

    def on_event(self, event: SequenceEvent) -> None:
        match event:
            case Admitted(num_cached_blocks=num_blocks):
                self._ask_prefill(num_blocks)
            case Bound(block_ids=block_ids):
                assert self._prefill is not None
                self._prefill.bound(block_ids)
            case Started(num_cached_tokens=num_tokens):
                self._num_cached_tokens = num_tokens
                self.phase = "prefill"
                self._took_prompt(num_tokens)
                self._owner.reached(self.choice, "prefill.queue")
            case Progress():  # a beam search's prompt is done
                self._prefilled_here()
            case TokenLogprobs():
                self._owner.judged(self.choice, to_wire(event))
            case SequenceRefused(reason=reason, message=message):
                self._owner.failed(sequence_failure(reason, message))
            case Finished(reason=reason) if reason in _COMPLETE:
                self._end(reason)
            case Finished(reason=reason, message=message):
                message = message or f"the sequence ended: {reason}"
                self._owner.failed(sequence_failure(reason, message))

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        if index == self._num_emitted:
            self._prefilled_here()
        if index >= self.num_output_tokens:  # else a search tells again what the gateway has
            self._forward(token_id, index, None if logprobs is None else to_wire(logprobs))

    # What the remote prefill tells (RemotePrefillOwner).

    def bind_blocks(self) -> None:
        self.phase = "prefill"
        self._parts.dispatcher.send(Bind(self.seq_id))

    def first_token(self, frame: handoff_pb2.FirstTokens, num_blocks: int) -> None:
        self.phase = "handoff"
        self._owner.prefilled(self.choice, frame, num_blocks)
        if self._request.is_search:
            return
        self._forward(frame.token_id, self._num_emitted, _logprobs_of(frame))
        for run, told in zip(self._forks, frame.forks, strict=False):
            if not run.is_ended:
                run._forward(told.token_id, 0, _logprobs_of(told))
        if ended_at_once(frame):
            self._end_all(frame)

    def prefill_complete(self, frame: handoff_pb2.FirstTokens, *, is_on_device: bool) -> None:
        self._owner.reached(self.choice, "handoff")
        self.phase = "decode"
        self._is_handing_over = False
        top = frame.logprobs if self._request.is_search else worker_pb2.TokenLogprobs()
        tokens = zip(self._forks, frame.forks, strict=False)
        start = Start(
            seq_id=self.seq_id,
            first_token=frame.token_id,
            fork_tokens=tuple((run.seq_id, told.token_id) for run, told in tokens),
            top_ids=tuple(top.top_ids),
            top_logprobs=tuple(top.top_logprobs),
            is_on_device=is_on_device,
        )
        self._parts.dispatcher.send(start)
        self._owner.prompt_is_here()
        if self._is_unwanted:
            self.cancel()

    def prefill_failed(self, error: failures.BatonError) -> None:
        self._owner.failed(error)

    def _ask_prefill(self, num_cached_blocks: int) -> None:
        assert self._span is not None
        self._took_prompt(num_cached_blocks * self._parts.blocks.spec.block_size)
        self._owner.reached(self.choice, "admit")
        self._prefill = RemotePrefill(
            self._request, self, num_cached_blocks, self._parts, self._links
        )
        try:
            self._prefill.ask(self._span)
        except failures.BatonError as error:
            self._owner.failed(error)

    def _forward(
        self, token_id: int, index: int, logprobs: worker_pb2.TokenLogprobs | None
    ) -> None:
        assert index == self.num_output_tokens, "output tokens are gapless"
        self.num_output_tokens += 1
        self._owner.token(self.choice, index, token_id, logprobs)

    def _prefilled_here(self) -> None:
        """The first token comes next, or this prompt's beam search begins."""
        if self._num_cached_tokens is None:
            return
        self.phase = "decode"
        self._owner.reached(self.choice, "prefill.compute")
        summary = handoff_pb2.FirstTokens(num_cached_tokens=self._num_cached_tokens)
        self._owner.prefilled(self.choice, summary, 0)
        self._num_cached_tokens = None
        self._owner.prompt_is_here()

    def _end_all(self, frame: handoff_pb2.FirstTokens) -> None:
        """The first token of every choice was its last."""
        assert self._prefill is not None
        self._prefill.end(None)
        reasons = [frame.finish_reason, *(told.finish_reason for told in frame.forks)]
        for run, reason in zip((self, *self._forks), reasons, strict=True):
            if not run.is_ended:
                run._parts.dispatcher.abort(run.seq_id)
                run._end("cancelled" if run._is_unwanted else reason)

    def _end(self, reason: str) -> None:
        self.is_ended = True
        self._parts.dispatcher.forget(self.seq_id)
        self._tell_end(reason)

    def _tell_end(self, reason: str) -> None:
        finish = worker_pb2.Finish(reason=reason, num_output_tokens=self.num_output_tokens)
        self._owner.finished(self.choice, finish)

    def _took_prompt(self, num_cached_tokens: int) -> None:
        num_tokens = len(self._token_ids) // TOKEN_BYTES
        self._parts.metrics.took_prompt(num_tokens, num_cached_tokens)


def _logprobs_of(
    told: handoff_pb2.FirstTokens | handoff_pb2.ForkToken,
) -> worker_pb2.TokenLogprobs | None:
    return told.logprobs if told.HasField("logprobs") else None
