"""The grammars of an engine's sequences: compile, hand out, follow, and the masks of each step.

A step begins with `settle`: sequences with a grammar that has become ready go on, and those with
one that failed are returned. `masks` makes the batch's TokenMasks; `follow` comes after each new
token. All of it runs in the engine's thread and waits for nothing.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

import numpy as np

from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.mask_thread import StateWorker
from baton.engine.grammar.state import GrammarState
from baton.engine.protocol.messages import Grammar
from baton.engine.sequence.sequence import Sequence, SequenceState
from baton.engine.step.step_masks import Limited, StepMasks
from baton.engine.step.step_plan import ScheduledSequence

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Compiled grammars that are kept for later requests, each of some 12 MB at the most.
MAX_CACHED = 32
# How soon to look again for a grammar that is not ready, when there is nothing else to do.
POLL_S = 0.002
_GOING_ON = (SequenceState.RUNNING, SequenceState.WAITING)


class Grammars:
    """The grammars of one engine. `compiling` runs one job at a time, `worker` those of states."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        compiling: Executor,
        worker: StateWorker,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.tokenizer_file = compiler.tokenizer_file
        self._compiler = compiler
        self._compiling = compiling
        self._worker = worker
        self._cpu_clock = cpu_clock
        self._compiled: OrderedDict[Grammar, Future[LLMatcher]] = OrderedDict()
        # Sequences that cannot go on before their grammar is ready.
        self._awaiting: list[Sequence] = []
        self._rows = np.empty((0, compiler.num_words), np.int32)

    @property
    def is_awaited(self) -> bool:
        """A sequence may become able to go on without a command."""
        return bool(self._awaiting)

    def warm_up(self) -> None:
        """Read the tokenizer now: the library keeps the GIL meanwhile, later there are steps."""
        self._compiling.submit(self._compiler.load)

    def open(self, seq: Sequence) -> None:
        """Take a new sequence that has a grammar: it is parked until that is compiled."""
        state = seq.grammar = GrammarState(self._compiler.num_words, self._cpu_clock)
        tokens = self._new_tokens(seq, state)
        compiled = self._compile(_grammar_of(seq))
        compiled.add_done_callback(
            lambda ended: self._worker.submit(state, lambda: state.begin(ended, tokens))
        )
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
                # It may be the automaton that all states of one grammar share.
                self._compiled.pop(_grammar_of(seq), None)
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
        tokens = self._new_tokens(seq, state)
        if tokens:
            state.work = Future()
            self._worker.submit(state, lambda: state.advance(tokens))

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
            self._rows = np.empty((2 * num_rows, self._compiler.num_words), np.int32)
        return StepMasks(limited, self._rows[:num_rows], self._worker)

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

    def _compile(self, grammar: Grammar) -> "Future[LLMatcher]":
        """The compiled grammar to be, from the cache when it is there."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiling.submit(self._compiler.compile, grammar)
            self._compiled[grammar] = compiled
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > MAX_CACHED:
            self._compiled.popitem(last=False)
        return compiled

    def _new_tokens(self, seq: Sequence, state: GrammarState) -> list[int]:
        tokens: list[int] = seq.tokens(
            seq.num_prompt_tokens + state.num_tokens, seq.num_tokens
        ).tolist()
        state.num_tokens += len(tokens)
        return tokens


def _grammar_of(seq: Sequence) -> Grammar:
    grammar = seq.request.sampling.grammar
    assert grammar is not None, seq
    return grammar
