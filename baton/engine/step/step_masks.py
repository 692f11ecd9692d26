"""The masks of one step: one row for each sampled row that a grammar limits (`TokenMasks`).

They are worked out while the model runs. A state that is not ready `GRACE_S` after the logits are
there is late: its rows allow everything, and the engine drops what was sampled from them, so that
no other sequence waits for it.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.engine.grammar.mask_thread import StateWorker
from baton.engine.grammar.state import ALL_ALLOWED, GrammarState

GRACE_S = 0.01


class Limited(NamedTuple):
    """One sequence's rows: `first_row` for its next token, then one for each token of `draft`."""

    state: GrammarState
    first_row: int
    draft: tuple[int, ...]


class StepMasks:
    """Fills `rows` `[num_masks, num_words]`, which it borrows for the step."""

    def __init__(
        self, limited: list[Limited], rows: NDArray[np.int32], worker: StateWorker
    ) -> None:
        self._limited = limited
        self._rows = rows
        self._worker = worker

    def start(self) -> None:
        for one in self._limited:
            if one.draft:
                assert one.state.is_ready, "drafts are for states that are ready"
                one.state.work = Future()
                self._worker.submit(one.state, _looking_ahead(one))

    def result(self) -> NDArray[np.int32]:
        pending = [one.state.work for one in self._limited if not one.state.is_ready]
        if pending:
            wait(pending, timeout=GRACE_S)
        for state, first_row, draft in self._limited:
            state.is_late = not state.is_ready
            rows = self._rows[first_row : first_row + len(draft) + 1]
            if state.is_late:
                rows.fill(ALL_ALLOWED)
                state.can_look_ahead &= not draft
            else:
                state.work.result()
                rows[:] = state.ahead if draft else state.mask
        return self._rows


def _looking_ahead(one: Limited) -> Callable[[], None]:
    return lambda: one.state.look_ahead(one.draft)
