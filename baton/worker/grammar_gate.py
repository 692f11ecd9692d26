"""Lets the grammars of requests through that a killable child could compile within its limits.

One child, started at the first grammar, tries one at a time; what it said is kept, so that a known
grammar passes at once and a hostile one is tried once. The others wait in line, at most MAX_WAITING
of them; who leaves takes its grammar out of the line, or out of the child's hands. Requests without
a grammar never come here. See `baton/engine/grammar/__init__.py`.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

import msgspec

from baton.engine.grammar.check_messages import CheckSetup, Verdict
from baton.engine.protocol.messages import EngineInfo, Grammar
from baton.runtime import logs
from baton.system.child import ChildDied, ChildFailed, ChildLimits, ChildProcess
from baton.system.clock import Clock
from baton.wire import failures

CHILD_MODULE = "baton.engine.grammar.check_child"
# Of processor time for one grammar; then the child ends itself.
MAX_CPU_S = 2.0
# Of wall time: what MAX_CPU_S may become on a busy machine.
DEADLINE_S = 30.0
MAX_WAITING = 64
MAX_KNOWN = 256

_log = logs.get("worker.grammar_gate")

OnOutcome = Callable[[Grammar | failures.BatonError], None]

_encode = msgspec.msgpack.Encoder().encode
_decode_verdict = msgspec.msgpack.Decoder(Verdict).decode


class GrammarGate:
    """The gate of one front; `run` must run."""

    def __init__(self, info: EngineInfo, clock: Clock, max_cpu_s: float = MAX_CPU_S) -> None:
        # Without a file nothing is tried, and the child never starts.
        tokenizer_file = info.tokenizer_file or ""
        setup = CheckSetup(tokenizer_file, info.vocab_size, info.eos_token_ids, max_cpu_s)
        # For reading the tokenizer; then the child takes narrower limits.
        limits = ChildLimits(memory_bytes=4 * 1024**3)
        self._has_tokenizer = info.tokenizer_file is not None
        self._child = ChildProcess(CHILD_MODULE, clock, setup=_encode(setup), limits=limits)
        self._waiting: deque[tuple[Grammar, OnOutcome]] = deque()
        self._arrived = asyncio.Event()
        # What the child tries now, and whom to tell.
        self._trying: tuple[Grammar, OnOutcome] | None = None
        self._given_up = asyncio.Event()
        # By digest, the one used last at the end.
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()

    def check(self, grammar: Grammar, on_outcome: OnOutcome) -> None:
        """Call `on_outcome` with the grammar for the core or with what is wrong, maybe at once."""
        if not self._has_tokenizer:
            on_outcome(_refused("this worker has no tokenizer file for its model"))
        elif (verdict := self._recall(grammar)) is not None:
            on_outcome(outcome_of(grammar, verdict))
        elif len(self._waiting) >= MAX_WAITING:
            message = f"{MAX_WAITING} requests wait for their grammars to be compiled"
            on_outcome(failures.Overloaded(message, retry_after_s=1))
        else:
            self._waiting.append((grammar, on_outcome))
            self._arrived.set()

    def withdraw(self, on_outcome: OnOutcome) -> None:
        """The caller that asked with this has left and gets no answer."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != on_outcome)
        if self._trying is not None and self._trying[1] == on_outcome:
            self._given_up.set()

    async def run(self) -> None:
        """Try what waits until cancelled; then the child is gone."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    self._trying = self._waiting.popleft()
                    await self._try_or_give_up(*self._trying)
                    self._trying = None
        finally:
            await self._child.close()

    async def _try_or_give_up(self, grammar: Grammar, on_outcome: OnOutcome) -> None:
        self._given_up.clear()
        if self._recall(grammar) is None:
            # Starting takes long, and is for those in line, too.
            with suppress(ChildFailed):
                await self._child.start()
        async with asyncio.TaskGroup() as tasks:
            trying = tasks.create_task(self._try(grammar))
            giving_up = tasks.create_task(self._given_up.wait())
            await asyncio.wait((trying, giving_up), return_when=asyncio.FIRST_COMPLETED)
            trying.cancel()
            giving_up.cancel()
        if not self._given_up.is_set():
            on_outcome(trying.result())

    async def _try(self, grammar: Grammar) -> Grammar | failures.BatonError:
        verdict = self._recall(grammar)
        if verdict is None:
            try:
                answer = await self._child.call(_encode(grammar), deadline_s=DEADLINE_S)
                verdict = _decode_verdict(answer)
            except ChildDied as error:
                _log.warning("grammar_check_ended", kind=grammar.kind, detail=str(error))
                verdict = Verdict("it takes too much time or memory to compile")
            except ChildFailed as error:
                # No fault of the grammar: the machine is busy, or others' grammars were bad.
                _log.warning("grammar_check_failed", kind=grammar.kind, detail=str(error))
                message = "grammars cannot be compiled at the moment"
                return failures.Overloaded(message, retry_after_s=5)
            self._remember(grammar, verdict)
        return outcome_of(grammar, verdict)

    def _recall(self, grammar: Grammar) -> Verdict | None:
        key = _digest(grammar)
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def _remember(self, grammar: Grammar, verdict: Verdict) -> None:
        self._known[_digest(grammar)] = verdict
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def outcome_of(grammar: Grammar, verdict: Verdict) -> Grammar | failures.BatonError:
    """The grammar for the core, or the refusal."""
    if verdict.refusal is not None:
        return _refused(verdict.refusal)
    if verdict.text is None:
        return grammar
    return msgspec.structs.replace(grammar, text=verdict.text)


def _refused(reason: str) -> failures.InvalidRequest:
    message = f"response_format: {reason}"
    return failures.InvalidRequest(message, reason="invalid_grammar", param="response_format")


def _digest(grammar: Grammar) -> bytes:
    return sha256(_encode(grammar)).digest()
