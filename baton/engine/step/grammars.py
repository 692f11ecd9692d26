"""The grammars of an engine's sequences, and the masks of each step.

A step begins with `settle`: sequences with a grammar that has become ready go on, and those with
one that failed are returned. `masks` makes the batch's TokenMasks; `follow` comes after each new
token. All of it runs in the engine's thread and waits for nothing.
"""

from collections.abc import Iterable

import numpy as np

from baton.engine.grammar.states import GrammarStates
from baton.engine.protocol.messages import Grammar
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.step_masks import Limited, StepMasks
from baton.engine.step.step_plan import ScheduledSequence

_GOING_ON = (SequenceState.RUNNING, SequenceState.WAITING)


class Grammars:
    """The grammars of one engine."""

    def __init__(self, states: GrammarStates) -> None:
        self.states = states
        # Sequences that cannot go on before their grammar is ready.
        self._awaiting: list[Sequence] = []
        self._rows = np.empty((0, states.compiler.num_words), np.int32)

    @property
    def is_awaited(self) -> bool:
        """A sequence may become able to go on without a command."""
        return bool(self._awaiting)

    def open(self, seq: Sequence) -> None:
        """Take a new sequence that has a grammar: it is parked until that is compiled."""
        seq.grammar = self.states.open(_grammar_of(seq), _tokens_behind(seq, 0))
        self._await(seq)

    def settle(self) -> list[tuple[Sequence, str]]:
        """Unpark sequences with a grammar that is ready. Returns those with one that failed."""
        awaiting, self._awaiting = self._awaiting, []
        failed = []
        for seq in awaiting:
            state = seq.grammar
            assert state is not None, seq
            seq.awaits_grammar = False
            if seq.state is SequenceState.ENDED:
                continue
            # Until Start the front may be writing into a bound sequence's blocks.
            if not state.is_ready or (state.fault is not None and seq.state is SequenceState.BOUND):
                self._await(seq)
                continue
            state.work.result()
            if state.fault is not None:
                self.states.forget(_grammar_of(seq))
                failed.append((seq, state.fault))
            else:
                self.follow(seq)
        return failed

    def follow(self, seq: Sequence) -> None:
        """Let the grammar take the output tokens that it has not seen; later, when it is busy."""
        state = seq.grammar
        if state is None or not state.is_ready or state.fault is not None:
            return
        if seq.state not in _GOING_ON:
            return
        tokens = _tokens_behind(seq, state.num_tokens)
        if tokens:
            self.states.advance(state, tokens)

    def masks(self, sequences: Iterable[ScheduledSequence]) -> StepMasks | None:
        """The masks of a step's sampled rows; sets `mask_row` of those that a grammar limits."""
        limited: list[Limited] = []
        num_rows = 0
        for scheduled in sequences:
            rows = [row for row in scheduled.rows if row.forced_token is None]
            if scheduled.seq.grammar is None or not rows:
                continue
            limited.append(Limited(scheduled.seq.grammar, num_rows, scheduled.draft))
            num_own = len(scheduled.draft) + 1
            for index, fork in enumerate(scheduled.forks, num_rows + num_own):
                assert fork.grammar is not None, fork
                limited.append(Limited(fork.grammar, index, ()))
            for row in rows:
                row.mask_row = num_rows
                num_rows += 1
        if not limited:
            return None
        if num_rows > len(self._rows):
            self._rows = np.empty((2 * num_rows, self.states.compiler.num_words), np.int32)
        return StepMasks(limited, self._rows[:num_rows], self.states.worker)

    def holds_back(self, scheduled: ScheduledSequence) -> bool:
        """After a step: the tokens that it sampled must not be used, for lack of a mask.

        A sequence that lacked one is parked until it is there, or until `settle` returns its fault.
        """
        if scheduled.seq.grammar is None or all(row.mask_row is None for row in scheduled.rows):
            return False
        lacking = [
            seq
            for seq in (scheduled.seq, *scheduled.forks)
            if seq.grammar is not None and (seq.grammar.is_late or seq.grammar.fault is not None)
        ]
        for seq in lacking:
            self._await(seq)
        return bool(lacking)

    def _await(self, seq: Sequence) -> None:
        seq.awaits_grammar = True
        self._awaiting.append(seq)


def _grammar_of(seq: Sequence) -> Grammar:
    grammar = seq.request.sampling.grammar
    assert grammar is not None, seq
    return grammar


def _tokens_behind(seq: Sequence, num_tokens: int) -> list[int]:
    """The output tokens behind the first `num_tokens`."""
    tokens: list[int] = seq.tokens(seq.num_prompt_tokens + num_tokens, seq.num_tokens).tolist()
    return tokens
