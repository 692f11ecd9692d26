"""No stage begins for a client that has left, also where the event loop has not heard of it."""

import pytest

from baton.wire.failures import Cancelled
from services.gateway.request.trace import Stage
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate


class LeavingClient(RecordingSink):
    """A client whose connection is found closed when it is looked at for the nth time."""

    def __init__(self, num_looks: int) -> None:
        super().__init__()
        self.num_looks = num_looks

    @property
    def has_left(self) -> bool:  # type: ignore[override]
        self.num_looks -= 1
        return self.num_looks < 0


STAGES = (Stage.AUTH, Stage.VALIDATE, Stage.RESERVE, Stage.TOKENIZE, Stage.PICK)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_does_not_begin_for_a_client_that_has_left(stage: Stage) -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(Cancelled):
            await fleet.chat(LeavingClient(STAGES.index(stage)))
        num_done = [
            fleet.quota.num_authenticated,
            len(fleet.tokenizer.encoded),
            len(fleet.quota.reserved),
            len(fleet.router.picked),
        ]
        owners = (Stage.AUTH, Stage.TOKENIZE, Stage.RESERVE, Stage.PICK)
        assert num_done == [int(STAGES.index(each) < STAGES.index(stage)) for each in owners]
        assert len(fleet.quota.settled) == len(fleet.quota.reserved)

    simulate(scenario)
