"""Compiles grammars for one model's vocabulary with llguidance, within limits. No torch.

Limits: what JSON schemas of 20 to 800 fields and usual expressions need on vocabularies of 4,096 to
150,000 tokens, times two or more; beyond them a mask could take seconds
(docs/decisions/0008-llguidance.md has the figures).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from baton.engine.grammar.translate import GrammarRefused, to_library
from baton.engine.protocol.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Names and units are the library's: see LLParserLimits.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_items_in_row": 1_000,
    # About 0.6 kB each (measured).
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
    # Errors must not quote what was generated.
    "verbose_errors": False,
}
WORD_BITS = 32


class GrammarCompiler:
    """For one vocabulary: `vocab_size` logits, ids beyond the tokenizer's are never allowed."""

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.num_words = -(-vocab_size // WORD_BITS)
        self.tokenizer_file = tokenizer_file
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: Any = None

    def compile(self, grammar: Grammar) -> "LLMatcher":
        """The grammar at its start, with its first mask tried. Raises GrammarRefused.

        Never called by two threads at once. Gives up the GIL for the most part.
        """
        self.load()
        import llguidance

        matcher = llguidance.LLMatcher(
            self._tokenizer,
            to_library(grammar),
            log_level=0,
            limits=llguidance.LLParserLimits(**LIMITS),
        )
        fill_mask(matcher, np.empty(self.num_words, np.int32))
        if matcher.is_error():
            raise GrammarRefused(error_of(matcher))
        return matcher

    def load(self) -> None:
        """Read the tokenizer, unless that was done. Raises GrammarRefused when it cannot serve.

        Keeps the GIL: 0.1 s for 32,000 tokens, 0.9 s for 150,000 (measured).
        """
        if self._tokenizer is not None:
            return
        import llguidance

        try:
            if not self._eos_token_ids:
                raise ValueError("the model has no end token")
            text = self.tokenizer_file.read_text(encoding="utf-8")
            self._tokenizer = llguidance.LLTokenizer(
                text, n_vocab=self._vocab_size, eos_token=self._eos_token_ids
            )
        except (OSError, ValueError) as error:
            message = f"this model's tokenizer does not allow structured output: {error}"
            raise GrammarRefused(message) from error


def fill_mask(matcher: "LLMatcher", row: NDArray[np.int32]) -> None:
    """Write the allowed next tokens into contiguous `row` `[num_words]`, without the GIL."""
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def error_of(matcher: "LLMatcher") -> str:
    """Say in one line for people why the matcher has stopped working."""
    error: str = matcher.get_error()
    if error.startswith("NoExtension"):
        return "no text matches the grammar"
    return error
