"""One choice of one attempt: a sequence in the engine and, when prefill is elsewhere, its handoff.

    local    add -> started -> tokens -> finished
    remote   add -> admitted -> handoff (remote_prefill.py), start -> tokens -> finished
    fork     (another choice's prompt) -> tokens -> finished
    pooling  add -> started -> vector, finished

Choices that begin at the same place have one leader: its prompt and its handoff serve all of them.
In a beam search all tokens come at the end. Knows no gateway stream.
"""

from collections.abc import Sequence
from typing import Protocol

from baton.engine.protocol.engine_time import SequenceTime
from baton.engine.protocol.messages import (
    Abort,
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
from baton.engine.protocol.pooled_messages import Pooled
from baton.wire import failures
from baton.wire.engine_time import add_time
from baton.wire.v1 import failure_pb2, handoff_pb2, worker_pb2
from baton.worker.cancels import Phase
from baton.worker.deps import WorkerDeps
from baton.worker.dispatch import SequenceEvent, sequence_failure, to_wire
from services.decode_worker.attempt_output import AttemptOutput
from services.decode_worker.incoming_transfer import ended_at_once
from services.decode_worker.prefill_links import PrefillLinks
from services.decode_worker.remote_prefill import RemotePrefill

_COMPLETE = ("stop", "length")
# Compared for each token: a global is found faster than an attribute of an enum.
_DECODE = Phase.DECODE


class ChoiceOwner(Protocol):
    """The attempt, as its choices know it.

    A choice ends in the middle of an engine step or of a peer's frame, and what the others hold
    must be free when that call returns: hence calls up, and nothing that an attempt waits for.
    """

    def prompt_is_here(self) -> None:
        """The choice decodes now: others find its prompt in the cache."""

    def ended(self, run: "ChoiceRun", reason: str) -> None:
        """The choice has ended by itself or was cancelled, and holds nothing."""

    def failed(self, error: failures.BatonError) -> None:
        """The attempt cannot go on; the choice holds what it has until `abort`."""


class ChoiceRun:
    """Listens to its sequence. `num_output_tokens` counts earlier attempts' tokens too."""

    def __init__(
        self, choice: int, owner: ChoiceOwner, output: AttemptOutput, deps: WorkerDeps
    ) -> None:
        request = output.request
        # The gateway's handle of the attempt, and the number of this choice.
        self.key = (request.submit.handle, choice)
        self.num_output_tokens = request.num_received(choice)
        self.phase = Phase.GRAMMAR
        # The gateway takes output tokens up to this index (exclusive); the engine is told once it
        # knows the sequence.
        self._credit = self.num_output_tokens + request.submit.initial_credit_tokens
        self._owner = owner
        self._output = output
        self._deps = deps
        self._forks: Sequence[ChoiceRun] = ()
        self._handoff: RemotePrefill | None = None
        # What it cost here, once it has ended, and at the prefill worker so far.
        self._spent = SequenceTime()
        self._spent_there = failure_pb2.EngineTime()
        # The answer of an attempt that pools.
        self.vector = b""
        self.seq_id = deps.dispatcher.open(self, request.request_id)

    @property
    def choice(self) -> int:
        return self.key[1]

    @property
    def is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def is_handing_over(self) -> bool:
        """Its prompt, and that of its forks, is on its way from a prefill worker."""
        return self._handoff is not None

    def start(self, links: PrefillLinks, forks: Sequence["ChoiceRun"] = ()) -> None:
        """Add the sequence to the engine, as the leader of `forks`."""
        request, submit = self._output.request, self._output.request.submit
        self._forks = forks
        if not request.prefills_here:
            # Beams come from the likeliest first tokens of the leader.
            others = [] if request.is_search else [run.choice for run in forks]
            self._handoff = RemotePrefill(self._output, self.choice, others, self._deps, links)
            self._spent_there = self._handoff.spent
        runs = (self, *forks)
        least_credit = min(run._credit for run in runs)
        self._deps.dispatcher.send(
            AddSequence(
                seq_id=self.seq_id,
                request_id=submit.request_id,
                choice=self.choice,
                kind="local" if request.prefills_here else "remote",
                token_ids=request.prompt_ids + request.emitted_ids(self.choice),
                num_emitted=request.num_tokens(self.choice) - request.num_prompt_tokens,
                block_hashes=request.block_hashes,
                cache_key=submit.cache_key,
                sampling=request.sampling_of(self.choice),
                credit=least_credit,
                priority=submit.priority,
                deadline=request.deadline_s,
                forks=tuple(Fork(run.seq_id, run.choice) for run in forks),
                is_suspect=submit.is_suspect,
                pools=submit.pools,
                is_quiet=submit.is_quiet,
                adapter=submit.adapter,
            )
        )
        for run in runs:
            run.phase = Phase.QUEUE
            if run._credit > least_credit:
                run.credit(run._credit)

    def credit(self, up_to_index: int) -> None:
        """The gateway takes output tokens up to this index (exclusive)."""
        self._credit = max(self._credit, up_to_index)
        if self.phase not in (Phase.GRAMMAR, Phase.ENDED):
            self._deps.dispatcher.send(Credit(self.seq_id, up_to_index))

    def abort(self, error: failures.BatonError) -> None:
        """Free everything on both sides, whatever the state. Safe to call again."""
        if self.is_ended:
            return
        self.phase = Phase.ENDED
        if self._handoff is not None:
            # Before the core frees the blocks: nothing is written into them any more.
            self._handoff.cancel(error)
        self._spent = self._deps.dispatcher.abort(self.seq_id)

    def bill(self) -> failure_pb2.EngineTime:
        """What it cost, once it has ended; it counts as billed."""
        bill = self._deps.dispatcher.bill(self._spent)
        add_time(bill, self._spent_there)
        return bill

    def cancel(self) -> None:
        """The gateway wants no more of this choice, and no other choice needs its prompt."""
        self.abort(failures.Cancelled("the choice was cancelled"))
        self._owner.ended(self, "cancelled")

    # What the engine tells (SequenceListener).

    def on_event(self, event: SequenceEvent) -> None:
        match event:
            case Admitted(num_cached_blocks=num_blocks):
                assert self._handoff is not None
                block_size = self._deps.blocks.spec.block_size
                self._output.promised(self.choice, num_blocks * block_size)
                self._handoff.start(self._hand_over(self._handoff, num_blocks))
            case Bound(rows=rows):
                assert self._handoff is not None
                self._handoff.take_rows(rows)
            case Started(num_cached_tokens=num_tokens):
                self.phase = Phase.PREFILL
                self._output.started_here(self.choice, num_tokens)
            case Progress():  # a beam search's prompt is done
                self._begin_decoding()
            case Pooled(vector=vector):
                self.vector = vector
                self._begin_decoding()
            case TokenLogprobs():
                self._output.prompt_logprobs(self.choice, to_wire(event))
            case SequenceRefused(reason=reason, message=message):
                self._owner.failed(sequence_failure(reason, message))
            case Finished(reason=reason) if reason in _COMPLETE:
                self._end(reason)
            case Finished(reason=reason, message=message):
                message = message or f"the sequence ended: {reason}"
                self._owner.failed(sequence_failure(reason, message))

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        if self.phase is not _DECODE:
            self._begin_decoding()
        if index >= self.num_output_tokens:  # else a search tells again what the gateway has
            self._forward(token_id, index, None if logprobs is None else to_wire(logprobs))

    def _forward(
        self, token_id: int, index: int, logprobs: worker_pb2.TokenLogprobs | None
    ) -> None:
        assert index == self.num_output_tokens, "output tokens are gapless"
        self.num_output_tokens += 1
        self._output.merge.add_token(self.key, index, token_id, logprobs)

    def _begin_decoding(self) -> None:
        """The first token comes next, or this prompt's beam search begins."""
        was_prefilled_here = self.phase is Phase.PREFILL
        self.phase = Phase.DECODE
        if was_prefilled_here:
            self._output.prefilled_here(self.choice)
            self._owner.prompt_is_here()

    async def _hand_over(self, handoff: RemotePrefill, num_cached_blocks: int) -> None:
        """Get the prompt prefilled elsewhere, for this choice and its forks, and decode."""
        try:
            first, is_on_device = await handoff.run(
                num_cached_blocks, self._bind, self._on_first_tokens
            )
        except failures.BatonError as error:
            self._handoff = None
            self._owner.failed(error)
            return
        self._handoff = None
        if ended_at_once(first):
            self._end_all(first)
        else:
            self._decode(first, is_on_device=is_on_device)

    def _bind(self, is_on_device: bool) -> None:
        self.phase = Phase.PREFILL
        self._deps.dispatcher.send(Bind(self.seq_id, is_on_device))

    def _on_first_tokens(self, frame: handoff_pb2.FirstTokens, num_blocks: int) -> None:
        self.phase = Phase.HANDOFF
        self._output.prefilled(self.choice, frame, num_blocks)
        if self._output.request.is_search:
            return
        self._forward(frame.token_id, self.num_output_tokens, _logprobs_of(frame))
        for run, fork_token in zip(self._forks, frame.forks, strict=False):
            if not run.is_ended:
                run._forward(fork_token.token_id, run.num_output_tokens, _logprobs_of(fork_token))
        self._output.flush()

    def _decode(self, first: handoff_pb2.FirstTokens, *, is_on_device: bool) -> None:
        """Every block of the prompt is filled: go on behind the first token."""
        self._output.reached(self.choice, "handoff")
        self.phase = Phase.DECODE
        is_search = self._output.request.is_search
        top = first.logprobs if is_search else worker_pb2.TokenLogprobs()
        tokens = zip(self._forks, first.forks, strict=False)
        start = Start(
            seq_id=self.seq_id,
            first_token=first.token_id,
            fork_tokens=tuple((run.seq_id, fork_token.token_id) for run, fork_token in tokens),
            top_ids=tuple(top.top_ids),
            top_logprobs=tuple(top.top_logprobs),
            is_on_device=is_on_device,
        )
        self._deps.dispatcher.send(start)
        self._owner.prompt_is_here()

    def _end_all(self, frame: handoff_pb2.FirstTokens) -> None:
        """The first token of every choice was its last."""
        reasons = [frame.finish_reason, *(fork_token.finish_reason for fork_token in frame.forks)]
        for run, reason in zip((self, *self._forks), reasons, strict=True):
            if not run.is_ended:
                run._deps.dispatcher.send(Abort(run.seq_id))
                run._end(reason)

    def _end(self, reason: str) -> None:
        self.phase = Phase.ENDED
        self._spent = self._deps.dispatcher.forget(self.seq_id)
        self._owner.ended(self, reason)


def _logprobs_of(
    fork_token: handoff_pb2.FirstTokens | handoff_pb2.ForkToken,
) -> worker_pb2.TokenLogprobs | None:
    return fork_token.logprobs if fork_token.HasField("logprobs") else None
