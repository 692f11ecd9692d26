"""Suspects have steps of their own, and every other step is the others'."""

from collections.abc import Iterable

from baton.engines.vllm.sequences import VllmSequence


class Turns:
    """Whose turn the next step is; everybody's while there are no suspects."""

    def __init__(self) -> None:
        # The request that runs alone; empty = all but suspects do; None = everybody.
        self._alone: str | None = None
        # The one that ran alone last, and whether that was just now.
        self._last = ""
        self._was_alone = False

    @property
    def are_limited(self) -> bool:
        """There are suspects: not all that could run may."""
        return self._alone is not None

    def begin(self, seqs: Iterable[VllmSequence]) -> None:
        """Choose whose turn the next step is."""
        runnable = [seq for seq in seqs if not seq.is_parked and not seq.is_remote]
        suspects = list(dict.fromkeys(s.add.request_id for s in runnable if s.is_suspect))
        has_others = any(not seq.is_suspect for seq in runnable)
        if not suspects or (has_others and self._was_alone):
            self._alone = "" if suspects else None
            self._was_alone = False
            return
        behind = [name for name in suspects if name != self._last] or suspects
        self._alone = self._last = behind[0]
        self._was_alone = True

    def end(self) -> None:
        """The step is over: whoever could run has something to do."""
        self._alone = None

    def must_wait(self, seq: VllmSequence) -> bool:
        """The step that comes next is others'."""
        if self._alone is None:
            return False
        if not self._alone:
            return seq.is_suspect
        return seq.add.request_id != self._alone or not seq.is_suspect
