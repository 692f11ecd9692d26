"""The grammars of an engine: each is compiled once, and each sequence has a state of its own.

All of it runs in the engine's thread and waits for nothing: what takes long runs in `compiling`,
one job at a time, and in `worker`.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.mask_thread import StateWorker
from baton.engine.grammar.state import GrammarState
from baton.engine.protocol.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Compiled grammars that are kept for later requests, each of some 12 MB at the most.
MAX_CACHED = 32
# How soon to look again for a grammar that is not ready, when there is nothing else to do.
POLL_S = 0.002


class GrammarStates:
    """Makes the states of one engine's sequences, and lets them follow what is sampled."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        compiling: Executor,
        worker: StateWorker,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.compiler = compiler
        self._compiling = compiling
        self.worker = worker
        self._cpu_clock = cpu_clock
        self._compiled: OrderedDict[Grammar, Future[LLMatcher]] = OrderedDict()

    @property
    def kept(self) -> list[Grammar]:
        """The grammars that need not be compiled again, the one used last at the end."""
        return list(self._compiled)

    def warm_up(self) -> None:
        """Read the tokenizer now: the library keeps the GIL meanwhile, later there are steps."""
        self._compiling.submit(self.compiler.load)

    def open(self, grammar: Grammar, tokens: Sequence[int]) -> GrammarState:
        """The state behind `tokens`; it is ready once the grammar has been compiled."""
        state = GrammarState(self.compiler.num_words, self._cpu_clock)
        state.num_tokens = len(tokens)
        self._compile(grammar).add_done_callback(
            lambda ended: self.worker.submit(state, lambda: state.begin(ended, tokens))
        )
        return state

    def advance(self, state: GrammarState, tokens: Sequence[int]) -> None:
        """Let a state that is ready take further output tokens."""
        state.num_tokens += len(tokens)
        state.work = Future()
        self.worker.submit(state, lambda: state.advance(tokens))

    def forget(self, grammar: Grammar) -> None:
        """It failed: that may be the fault of the automaton that all its states share."""
        self._compiled.pop(grammar, None)

    def _compile(self, grammar: Grammar) -> "Future[LLMatcher]":
        """The compiled grammar to be, from the cache when it is there."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiling.submit(self.compiler.compile, grammar)
            self._compiled[grammar] = compiled
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > MAX_CACHED:
            self._compiled.popitem(last=False)
        return compiled
