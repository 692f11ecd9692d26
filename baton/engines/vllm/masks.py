"""Structured output: Baton's own grammars, whose masks the sampler of `row_choice.py` applies.

vLLM's structured output is not used: its version of the library differs, and its state cannot begin
behind the tokens of an earlier attempt. A sequence is in no step before its grammar is compiled.
Masks are worked out beside the steps; a step waits for one that is not ready, and a sequence whose
mask was late once is from then on in a step only when its mask is there: a slow grammar holds up
its neighbours a single time.
"""

from array import array
from collections.abc import Iterable
from concurrent.futures import wait

import numpy as np
from numpy.typing import NDArray

from baton.engine.grammar.states import GrammarStates
from baton.engines.vllm.sequences import VllmSequence

# A mask that is not there so soon after the logits is late.
GRACE_S = 0.01


class Masks:
    """The grammars of one engine's sequences; None: its model serves no structured output."""

    def __init__(self, states: GrammarStates | None) -> None:
        self._states = states
        # Sequences that are in no step before their mask is ready.
        self._awaiting: dict[str, VllmSequence] = {}
        # First tokens that came from a prefill worker meanwhile.
        self._unseen: dict[str, list[int]] = {}

    @property
    def is_awaited(self) -> bool:
        """A sequence may become able to go on without a command."""
        return bool(self._awaiting)

    def warm_up(self) -> None:
        """Read the tokenizer."""
        if self._states is not None:
            self._states.warm_up()

    def open(self, seq: VllmSequence) -> None:
        """Compile the grammar of a new sequence, if it has one."""
        add = seq.add
        if self._states is None or add.sampling.grammar is None:
            return
        tokens = array("I", add.token_ids)
        emitted = tokens[len(tokens) - add.num_emitted :].tolist()
        seq.grammar = self._states.open(add.sampling.grammar, emitted)
        self._awaiting[seq.name] = seq

    def must_wait(self, seq: VllmSequence) -> bool:
        """Its mask is not ready, and no step waits for it."""
        return seq.name in self._awaiting

    def settle(self) -> list[tuple[VllmSequence, str]]:
        """Let those go on whose mask is ready. Returns those whose grammar failed, with the why."""
        failed = []
        for name, seq in list(self._awaiting.items()):
            # Until Start the front may be writing into a bound sequence's blocks.
            is_being_written = seq.is_bound and not seq.is_started
            if (state := seq.grammar) is None or not state.is_ready:
                continue
            if (fault := fault_of(seq)) is None:
                del self._awaiting[name]
                self.follow(seq, self._unseen.pop(name, []))
            elif not is_being_written:
                del self._awaiting[name]
                failed.append((seq, fault))
        return failed

    def of_step(self, seqs: Iterable[VllmSequence]) -> dict[str, NDArray[np.int32] | None]:
        """The masks for a step whose logits are there; waits for those that are not ready. A
        grammar that has failed limits nothing: its token is dropped."""
        masks = {}
        for seq in seqs:
            if (state := seq.grammar) is None:
                continue
            if not state.is_ready:
                wait([state.work], timeout=GRACE_S)
                state.is_late |= not state.is_ready
                state.work.result()
            masks[seq.name] = state.mask if state.fault is None else None
        return masks

    def follow(self, seq: VllmSequence, tokens: list[int]) -> None:
        """Let the sequence's grammar take new output tokens; later, where it is not ready."""
        state = seq.grammar
        if self._states is None or state is None or not tokens:
            return
        if seq.name in self._awaiting:
            self._unseen[seq.name] = tokens
        elif state.fault is None:
            assert state.is_ready, "the step has waited for it"
            self._states.advance(state, tokens)
            if state.is_late:
                self._awaiting[seq.name] = seq

    def close(self, seq: VllmSequence) -> None:
        """The sequence has ended."""
        self._awaiting.pop(seq.name, None)
        self._unseen.pop(seq.name, None)

    def forget(self, seq: VllmSequence) -> None:
        """The sequence's grammar has failed: it is compiled anew for the next one."""
        if self._states is not None and seq.add.sampling.grammar is not None:
            self._states.forget(seq.add.sampling.grammar)


def fault_of(seq: VllmSequence) -> str | None:
    """Why no token can follow in the sequence, whose mask is ready; None: some can."""
    state = seq.grammar
    if state is None:
        return None
    state.work.result()  # raises what went wrong in the thread
    return state.fault
