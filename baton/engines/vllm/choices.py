"""The further choices of a request, which wait for the prompt of the first one, their leader.

Their first tokens come from the same logits as the leader's (`row_choice.py`), or from the prefill
worker that computed the prompt. From then on each is a request of its own: it finds the full blocks
of the prompt in the prefix cache, and computes the last one, which is not full, again.
"""

from array import array
from dataclasses import dataclass

import msgspec

from baton.engine.protocol.batch import RowLogprobs
from baton.engine.protocol.messages import AddSequence, Start, TokenLogprobs
from baton.engines.vllm.arrivals import Arrivals
from baton.engines.vllm.sequences import VllmSequence, reason_at_start
from baton.engines.vllm.state import VllmState


@dataclass(slots=True)
class _Fork:
    """A choice that waits. `first_token` is known once a prefill worker has told it."""

    add: AddSequence
    leader: str
    credit: int
    first_token: int | None = None


class Choices:
    """The waiting choices of one engine."""

    def __init__(self, state: VllmState, arrivals: Arrivals) -> None:
        self._state = state
        self._arrivals = arrivals
        self._forks: dict[int, _Fork] = {}

    @property
    def num_to_run(self) -> int:
        """Those that will take a place in the batch: a prefill worker's end with one token."""
        return sum(fork.add.kind == "local" for fork in self._forks.values())

    def open(self, add: AddSequence) -> None:
        """Let the other choices of a sequence that was taken in wait for its prompt."""
        kind = "prefill" if add.kind == "prefill" else "local"
        # The leader tells the logprobs of the prompt.
        sampling = msgspec.structs.replace(add.sampling, num_prompt_logprobs=None)
        common = msgspec.structs.replace(add, kind=kind, sampling=sampling, forks=())
        for fork in add.forks:
            own = msgspec.structs.replace(common, seq_id=fork.seq_id, choice=fork.choice)
            self._forks[fork.seq_id] = _Fork(own, str(add.seq_id), add.credit)

    def credit(self, seq_id: int, up_to_index: int) -> None:
        """A choice that waits may emit so many tokens."""
        fork = self._forks.get(seq_id)
        if fork is None:
            return
        fork.credit = max(fork.credit, up_to_index)
        leader = self._state.seqs[fork.leader]
        if leader.add.kind == "local" and leader.is_parked and fork.credit:
            del self._forks[seq_id]  # the leader has no reader, and its prompt is not computed
            self._arrivals.take_in(fork.add, fork.credit)

    def drop(self, seq_id: int) -> None:
        """The front wants no more of a choice."""
        self._forks.pop(seq_id, None)

    def has_any(self, leader: VllmSequence) -> bool:
        """Choices wait for this sequence."""
        return any(fork.leader == leader.name for fork in self._forks.values())

    def take_sampled(self, leader: VllmSequence) -> None:
        """The leader has its first token, and each other choice, too."""
        waiting = self._take(leader.name)
        first_tokens = self._state.core.model_executor.first_tokens(leader.name) if waiting else {}
        for seq_id, fork in waiting:
            token, logprobs = first_tokens[seq_id]
            if fork.credit:
                self._tell(seq_id, token, logprobs)
                fork.first_token = token
            self._go_on(seq_id, fork)

    def start(self, command: Start) -> None:
        """The first tokens of those that wait for a remote sequence are known."""
        for seq_id, token in command.fork_tokens:
            if seq_id in self._forks:
                self._forks[seq_id].first_token = token

    def release(self, leader: str) -> None:
        """Let those that wait for this sequence go on: its prompt is in the cache, or will never be
        computed for it."""
        for seq_id, fork in self._take(leader):
            self._go_on(seq_id, fork)

    def end(self, leader: VllmSequence, *, is_told: bool = False) -> None:
        """The leader has ended without a prompt, and so do those that wait for it; `is_told`: the
        front knows, since it takes a refusal for the whole request."""
        for seq_id, _ in self._take(leader.name):
            if not is_told:
                self._state.finish(seq_id, "deadline_exceeded", 0)

    def _take(self, leader: str) -> list[tuple[int, _Fork]]:
        taken = [(seq_id, fork) for seq_id, fork in self._forks.items() if fork.leader == leader]
        for seq_id, _ in taken:
            del self._forks[seq_id]
        return taken

    def _go_on(self, seq_id: int, fork: _Fork) -> None:
        if fork.first_token is None:
            self._arrivals.take_in(fork.add, fork.credit)
            return
        add = behind(fork.add, fork.first_token)
        reason = reason_at_start(add, self._state.info)
        if reason is not None:
            self._state.finish(seq_id, reason, add.num_emitted)
        elif add.kind == "local":
            self._arrivals.take_in(add, fork.credit).is_started = True
        # Else another worker goes on with it; nothing is held for it here.

    def _tell(self, seq_id: int, token: int, logprobs: RowLogprobs | None) -> None:
        self._state.take_token(seq_id, token, 0)
        if logprobs is not None:
            self._state.events.logprobs.append(TokenLogprobs(seq_id, 0, token, *logprobs))


def behind(add: AddSequence, token: int) -> AddSequence:
    """The sequence, with one more output token."""
    token_ids = add.token_ids + array("I", [token]).tobytes()
    return msgspec.structs.replace(add, token_ids=token_ids, num_emitted=add.num_emitted + 1)
