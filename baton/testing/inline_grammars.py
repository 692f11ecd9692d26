"""Grammars without threads: work is done when it is asked for, or when the test says so."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.grammars import Grammars
from baton.engine.grammar.state import GrammarState
from baton.engine.grammar.translate import GrammarRefused
from baton.testing.fake_runner import FakeRunner


class InlineExecutor(Executor):
    """Runs each job at once; while `is_held`, when `release` is called."""

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
        """Run what is held."""
        held, self._held = self._held, []
        for run in held:
            run()


class InlineWorker:
    """The same for the jobs of states."""

    def __init__(self) -> None:
        self.is_held = False
        self._held: list[tuple[GrammarState, Callable[[], None]]] = []

    def submit(self, state: GrammarState, job: Callable[[], None]) -> None:
        self._held.append((state, job))
        if not self.is_held:
            self.release()

    def release(self) -> None:
        """Run what is held."""
        held, self._held = self._held, []
        for state, job in held:
            job()
            state.work.set_result(None)


class InlineGrammars(Grammars):
    """For a FakeRunner whose vocabulary is that of `tokenizer_file`. No processor time passes."""

    def __init__(self, tokenizer_file: Path, runner: FakeRunner) -> None:
        self.compiling = InlineExecutor()
        self.working = InlineWorker()
        compiler = GrammarCompiler(tokenizer_file, runner.vocab_size, runner.eos_token_ids)
        super().__init__(compiler, self.compiling, self.working, cpu_clock=lambda: 0.0)
