"""Grammars without threads and children: jobs run when they are submitted, or on `release`."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec

from baton.engine.grammar.check_child import check
from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.state import GrammarState
from baton.engine.grammar.states import GrammarStates
from baton.engine.grammar.translate import GrammarRefused
from baton.engine.protocol.messages import EngineInfo, Grammar
from baton.engine.step.grammars import Grammars
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock
from baton.worker.grammar_gate import GrammarGate, OnOutcome, outcome_of


class InlineExecutor(Executor):
    """An executor that runs each job at once; while `is_held`, on `release`."""

    def __init__(self) -> None:
        self.is_held = False
        self._held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except GrammarRefused as error:
                future.set_exception(error)

        self._held.append(run)
        if not self.is_held:
            self.release()
        return future

    def release(self) -> None:
        """Run the held jobs."""
        held, self._held = self._held, []
        for run in held:
            run()


class InlineWorker:
    """An InlineExecutor for the jobs of grammar states."""

    def __init__(self) -> None:
        self.is_held = False
        self._held: list[tuple[GrammarState, Callable[[], None]]] = []

    def submit(self, state: GrammarState, job: Callable[[], None]) -> None:
        self._held.append((state, job))
        if not self.is_held:
            self.release()

    def release(self) -> None:
        """Run the held jobs."""
        held, self._held = self._held, []
        for state, job in held:
            job()
            state.work.set_result(None)


class InlineGrammars(Grammars):
    """Grammars of `tokenizer_file`'s vocabulary, for a FakeRunner. No processor time passes."""

    def __init__(self, tokenizer_file: Path, runner: FakeRunner) -> None:
        self.compiling = InlineExecutor()
        self.working = InlineWorker()
        compiler = GrammarCompiler(tokenizer_file, runner.vocab_size, runner.eos_token_ids)
        super().__init__(
            GrammarStates(compiler, self.compiling, self.working, cpu_clock=lambda: 0.0)
        )


class InlineGate(GrammarGate):
    """A grammar gate in the caller's task, without limits; while `is_held`, until `release`."""

    def __init__(self, info: EngineInfo) -> None:
        super().__init__(info, VirtualClock())
        self.is_held = False
        tokenizer_file = Path(info.tokenizer_file or "")
        self._compiler = GrammarCompiler(tokenizer_file, info.vocab_size, info.eos_token_ids)

    def check(self, grammar: Grammar, on_outcome: OnOutcome) -> None:
        self._waiting.append((grammar, on_outcome))
        if not self.is_held:
            self.release()

    def release(self) -> None:
        """Check the held grammars."""
        while self._waiting:
            grammar, on_outcome = self._waiting.popleft()
            verdict = check(self._compiler, msgspec.msgpack.encode(grammar))
            on_outcome(outcome_of(grammar, verdict))

    async def run(self) -> None:
        """Do nothing: no job runs on its own."""
