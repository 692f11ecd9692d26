"""The child process that tries grammars before a core sees them (see `baton/system/child.py`).

It does what the core will do: compile, first mask, some tokens. A timer signal ends it when one
grammar has used up its processor time, its address space may grow by MAX_GROWTH_BYTES; whatever
else a grammar does to the library happens here. GBNF becomes Lark here, because the translator is
Python and would hold up a core.
"""

import contextlib
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from baton.engine.grammar.check_messages import CheckSetup, Verdict
from baton.engine.grammar.compiler import GrammarCompiler, error_of, fill_mask
from baton.engine.grammar.translate import GrammarRefused, ebnf_to_lark
from baton.engine.protocol.messages import Grammar

MAX_GROWTH_BYTES = 256 * 1024 * 1024
# Tokens that are tried after the first mask.
NUM_TRIED_TOKENS = 8

_encode = msgspec.msgpack.Encoder().encode
_decode_setup = msgspec.msgpack.Decoder(CheckSetup).decode
_decode_grammar = msgspec.msgpack.Decoder(Grammar).decode


def build_handler(setup: bytes) -> tuple[Callable[[bytes], bytes], bytes]:
    """Read the tokenizer; requests are Grammars, answers Verdicts, the reply is empty."""
    described = _decode_setup(setup)
    compiler = GrammarCompiler(
        Path(described.tokenizer_file), described.vocab_size, described.eos_token_ids
    )
    refusal: str | None = None
    try:
        compiler.load()
    except GrammarRefused as error:
        refusal = str(error)
    _limit_growth()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process

    def handle(request: bytes) -> bytes:
        signal.setitimer(signal.ITIMER_PROF, described.max_cpu_s)
        try:
            return _encode(check(compiler, request) if refusal is None else Verdict(refusal))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return handle, b""


def check(compiler: GrammarCompiler, request: bytes) -> Verdict:
    """Compile the grammar, and try it on a few tokens of its own choice."""
    grammar, lark = _decode_grammar(request), None
    try:
        if grammar.kind == "ebnf":
            lark = ebnf_to_lark(grammar.text)
            grammar = msgspec.structs.replace(grammar, text=lark)
        matcher = compiler.compile(grammar)
    except GrammarRefused as error:
        return Verdict(str(error))
    mask, rng = np.empty(compiler.num_words, np.int32), np.random.default_rng(0)
    for _ in range(NUM_TRIED_TOKENS):
        if matcher.is_stopped():
            break
        fill_mask(matcher, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        matcher.consume_token(int(rng.choice(allowed)))
    refusal = str(GrammarRefused(error_of(matcher))) if matcher.is_error() else None
    return Verdict(refusal, lark)


def _limit_growth() -> None:
    # Not every system reports and limits the address space; all limit processor time.
    with contextlib.suppress(OSError, ValueError):
        num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = num_pages * resource.getpagesize() + MAX_GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
