"""Services that die while streams run, and while new ones come: one of two is enough."""

import pytest

from tests.chaos.conftest import Target
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Trials


@pytest.mark.parametrize("service", ["quota", "tokenizer", "router"])
def test_a_dying_service_is_not_noticed(service: str, target: Target, trials: Trials) -> None:
    body = story(max_tokens=120)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        # Always the same one: a gateway takes a second to find a replica that is back.
        name = f"{service}-1"
        target.wait_until_able()
        before = target.stream(body)
        before.wait_for(5)
        target.fault(name).kill().verify()
        after = target.stream(body)
        answers = [before.join(), after.join()]
        for answer in answers:
            assert_same(answer, right)
        return answers[0].stall_s

    trials.run(f"kill -9 {service}", 50, trial)
