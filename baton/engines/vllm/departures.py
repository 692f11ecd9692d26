"""Ends sequences before their time, and tells when vLLM has given their blocks back."""

from baton.engines.vllm.masks import Masks
from baton.engines.vllm.sequences import VllmSequence
from baton.engines.vllm.state import VllmState


class Departures:
    """The departures of one engine."""

    def __init__(self, state: VllmState, masks: Masks) -> None:
        self._state = state
        self._masks = masks
        # Aborted or released, and their blocks are not free yet.
        self._freeing: set[str] = set()

    def free(self, name: str) -> None:
        """End what the front has aborted or released; `freed` follows once its blocks are free."""
        self._freeing.add(name)
        self.end(name)

    def end(self, name: str) -> None:
        """Give everything back, and tell nothing of it."""
        state = self._state
        seq = state.seqs.get(name)
        if seq is None:  # it has ended, and its blocks are on their way
            return
        self._masks.close(seq)
        state.forget(seq)
        request = seq.request
        if name not in state.scheduler.requests:
            return
        if request.is_finished():  # a prefill that holds its blocks
            state.copies.released.add(name)
            return
        waits = request.status.name == "WAITING_FOR_REMOTE_KVS"
        imports = state.copies.imports
        # Its rows may be another one's when the next step copies.
        state.copies.imports = [each for each in imports if each[0] != name]
        was_to_come = not seq.is_started or len(state.copies.imports) < len(imports)
        state.core.abort_requests([name])
        if waits and name in state.scheduler.requests and was_to_come:
            state.copies.dropped.add(name)

    def end_expired(self) -> list[VllmSequence]:
        """End sequences that have reached their deadline, and tell it. Returns them."""
        now = self._state.clock.now()
        expired = []
        for seq in list(self._state.seqs.values()):
            deadline = seq.add.deadline
            if deadline is not None and deadline <= now and seq.may_expire:
                self._state.finish(seq.add.seq_id, "deadline_exceeded", seq.next_index)
                self.leave(seq)
                expired.append(seq)
        return expired

    def end_failed(self, seq: VllmSequence, fault: str) -> None:
        """End a sequence whose grammar lets no token follow."""
        self._state.finish(seq.add.seq_id, "invalid_grammar", seq.next_index, fault)
        self._masks.forget(seq)
        self.leave(seq)

    def leave(self, seq: VllmSequence) -> None:
        """Free a sequence that has ended by itself; but not a prefill from whose blocks the front
        may be sending: that waits for its Release."""
        if seq.add.kind == "prefill" and seq.is_started:
            seq.is_over = True
        else:
            self.end(seq.name)

    def report(self) -> None:
        """Tell which sequences hold nothing any more."""
        held = self._state.scheduler.requests
        for name in [name for name in self._freeing if name not in held]:
            self._freeing.discard(name)
            self._state.events.freed.append(int(name))
