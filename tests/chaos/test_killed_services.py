"""Services that die while streams run, and while new ones come: one of two is enough."""

import pytest

from tests.chaos.conftest import Target
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Missed, Trials


@pytest.mark.parametrize("service", ["quota", "tokenizer", "router"])
def test_a_dying_service_is_not_noticed(service: str, target: Target, trials: Trials) -> None:
    body = story(max_tokens=120)
    right = target.right_answer(body)

    def trial(number: int) -> float:
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


def test_streams_begin_while_every_router_is_dead(target: Target, trials: Trials) -> None:
    body = story(max_tokens=40)
    right = target.right_answer(body)

    def trial(number: int) -> None:
        target.wait_until_able()
        alone = target.stack.metric("gateway", "baton_gateway_lone_picks_total")
        for fault in [target.fault("router-1"), target.fault("router-2")]:
            fault.kill().verify()
        streams = [target.stream(body) for _ in range(4)]
        for stream in streams:
            assert_same(stream.join(), right)
        if target.stack.metric("gateway", "baton_gateway_lone_picks_total") == alone:
            raise Missed  # a router was back before they were asked

    trials.run("kill -9 all routers", 50, trial)
